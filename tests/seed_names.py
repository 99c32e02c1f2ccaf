"""Names that users of the five seeds know, by seed: docs/from_seeds.md must answer each."""


def _names(text: str) -> list[str]:
    return text.split()


NAMES: dict[str, dict[str, list[str]]] = {
    "S0": {
        "runner flags": _names("""
            --model_name_or_path --revision --output_dir --dataset_id --split --num_examples
            --dataset_start --examples_from_end --batch_size --num_samples --temperature --top_p
            --think_cap --answer_cap --dtype --step --tokenizer_path --seed --entropy_mode
            --attn_implementation --two_pass --second_pass_phrase --second_pass_use_sample_idx
            --dataset_path --dataset_prompt_column --dataset_solution_column"""),
        "entry points": _names("""
            unified_math unified_carpark unified_crossword openr1_math_runner
            carpark_inference_runner summarize_inference_runner backfill_math_pass2
            parse_math_args parse_carpark_args parse_crossword_args run_math_main run_carpark_main
            run_crossword_main math-backfill-pass2-all.slurm"""),
        "backfill flags": _names("""
            --input_jsonl --output_jsonl --inplace --dry_run --force --pass_key --group_by --filter
            --max_problems --max_rows --flush_every"""),
        "summary flags": _names("""
            results_root --max_prompt_versions --prompt_key --strict_prompt_key --filter_scope
            --prompt_family_regex --max_per_group --group_key --rewrite_filtered
            --write_filtered_to --aggregate_from_filtered --recompute_correctness --save_csv
            --per_example_csv"""),
        "summary columns": _names("""
            step n1S acc1S_pct acc1E_pct ent1 t1 a1 soft1S soft1E n2S acc2S_pct acc2E_pct ent2 t2
            a2 soft2S soft2E impS_pct impE_pct tag1_pct tag2_pct problem p1_correct p2_correct
            improved"""),
        "row fields": _names("""
            problem example_id gold_answer gold_answer_canon gold_answer_canon_set enumeration
            step split sample_idx pass1 pass2 pass2a pass2b pass2c pass2d endpoint deployment
            api_version temperature top_p usage prompt_tokens completion_tokens total_tokens"""),
        "pass fields": _names("""
            prev_output output pred_answer pred_answer_canon entropy entropy_think entropy_answer
            stop_reason_think stop_reason_answer has_reconsider_cue reconsider_markers
            reconsider_pos reconsider_context reconsider_excerpt is_correct_pred
            is_correct_after_reconsideration entropy_pre_cue entropy_reconsider_think
            entropy_reconsider_full is_valid_pred soft_reward soft_reward_detail
            improved_over_pass1 tokens_total tokens_think tokens_end_think tokens_answer
            valid_tag_structure finish_reason cue_text"""),
        "annotations": _names("""
            shift_in_reasoning_v1 shift_markers_v1 shift_first_marker_char shift_before_excerpt
            shift_after_excerpt shift_rationale_gpt shift_rationale_gpt_model
            shift_rationale_gpt_time shift_judge_prompt_variant"""),
        "words": _names("""
            stop_token eos max_new_tokens other injected_cue wait_line wait_reconsider
            reconsider_exact step_by_step step_by_step_alt recheck hold_on_reasoning_wrong
            approach_not_correct prefix pos_exact piece_dir step_close lcs bag_overlap
            length_penalty length_delta pred_canon gold_canon_options components picked_gold"""),
        "registry": _names("""
            TASK_REGISTRY TaskSpec DatasetSpec math-qwen math-llama math-azure math_q15b_promptv1
            math_q15b_promptv2 math_q15b_promptv3 math_q15b_promptv4 math_q15b_promptv5 carpark
            crossword openr1 system_prompt stop_think stop_answer two_pass think_cap answer_cap
            max_output_tokens canonicalize_pred canonicalize_gold loader default_id prompt_column
            answer_column split MATH_SYSTEM_PROMPT CROSSWORD_SYSTEM_PROMPT CARPARK_SYSTEM_PROMPT
            OPENR1_PROMPT_TEMPLATE MATH-500 CROSSWORD-LOCAL od2961/rush4-5-6-balanced
            od2961/Guardian-cryptonite-official-split open-r1/OpenR1-Math-220k"""),
        "generation": _names("""
            move_inputs_to_device tokenize_prefixes_for_generate build_generate_kwargs
            make_generate_kwargs_for_cap GenerationLimits GenerateBatchParams
            GenerateBatchRuntime generate_and_score_batch run_generate_batch decode_generated_row
            decode_and_score_batch entropy_from_start_index first_eos_any StopOnSubstrings
            classify_stop_reason repeat_for_samples SamplingConfigBase
            build_math_inference_config_kwargs build_math_inference_config_kwargs_from_args
            require_torch require_transformers HFBackend HFBackend.from_pretrained
            HFBackend.generate prompts stop_strings max_length gen_kwargs texts stop_reasons
            sequences _load_torch_and_transformers"""),
        "plumbing": _names("""
            require_datasets load_local_json_dataset iter_jsonl_objects append_jsonl_row
            scan_existing_pass1_results scan_existing_problem_samples
            build_math_gateway_arg_parser build_math_gateway_messages
            build_math_gateway_row_base build_usage_dict build_two_pass_row_base
            prepare_math_gateway_dataset prepare_math_gateway_dataset_from_args
            build_eos_ids_from_tokenizer configure_tokenizer_and_eos setup_hf_cache_dir_env
            setup_script_logger call_with_gateway_retries call_with_retries
            parse_openai_chat_response iter_math_gateway_samples limit_dataset_examples
            load_remote_dataset_default add_basic_runner_args add_model_and_output_args
            add_math_gateway_dataset_args add_two_pass_args add_math_gateway_sampling_args
            init_unified_backend_and_eos load_azure_config build_preferred_client scan_files
            StepAgg accumulate_prompt_variants"""),
        "math": _names("""
            canon_math contains_canon extract_blocks build_math_pass_meta pack_math_pass_result
            build_entropy_pass_base add_token_and_tag_fields finite_mean RECONSIDER_PATTERNS
            MathSamplingConfig MathTwoPassConfig MathInferenceConfig MathInferenceContext
            BatchLayout ExistingPassState TwoPassBatchOutputs BatchWriteContext SecondPassInputs
            _gen_batch _build_work_items_for_slice _build_pass1_prefixes
            _build_second_pass_base_prompts build_second_pass_think_prefixes
            extract_problem_and_answer load_math500 run_inference_on_split enabled phrase
            two_pass_cfg split_name entropy_mode eos_ids"""),
        "carpark and crossword": _names("""
            _canon_rush_generic _canon_rush_gold _toklist _lcs_len _multiset_overlap_ratio
            _score_rush_pair rush_soft_match_reward _is_valid_rush SYSTEM_PROMPT norm_fields
            load_existing_example_index build_batch_items_for_range load_rush_dataset
            CarparkInferenceConfig InferenceContext _pack_pass_result
            _compute_second_pass_outputs_for_carpark CrosswordCapsConfig CrosswordSamplingConfig
            CrosswordTwoPassConfig CrosswordInferenceConfig _canon_cross _compute_entropy_info
            _find_reconsider_info find_markers_and_context BatchGenerationContext
            _repeat_for_samples"""),
        "gateways": _names("""
            --deployment --max_output_tokens --request_timeout --max_retries --temperatures
            --backfill_pass2 AZURE_OPENAI_API_KEY OPENROUTER_API_KEY OPENROUTER_API_BASE
            AI_SANDBOX_KEY endpoint api_key deployment api_version use_v1"""),
        "clusters": _names("""
            --ds_config --ds_tag INFER_STEP INFER_TEMP NUM_EXAMPLES DATASET_START MODEL_ROOT
            OUTPUT_ROOT HF_HOME"""),
    },
    "S1": {
        "config keys": _names("""
            max_sequence_length dtype load_in_4bit load_in_8bit testing_data_id question_column
            ground_truth_column system_prompt_column system_prompt_override_text max_new_tokens
            use_cache temperature min_p hf_user_id run_name run_name_prefix run_name_suffix
            enable_finetuning enable_inference enable_evaluation stop_after_finetuning
            stop_after_inference metrics llm embedding cost_per_million_input_tokens
            cost_per_million_output_tokens fine_tuner inferencer evaluator mlflow pipeline"""),
        "methods and flags": _names("""
            Inferencer Inferencer.run ConfigManager config_manager --hf-key HF_TOKEN
            load_model_and_tokenizer process_dataset generate_responses CustomInferencer
            stream_inference stream ModelNotFoundError OutOfMemoryError models/fine_tuned"""),
        "generation": _names("""
            top_p top_k repetition_penalty length_penalty early_stopping do_sample batch_size"""),
        "output": _names("""
            inferencer_output.jsonl system_prompt user_prompt assistant_response ground_truth
            question predicted_answer metadata model_id inference_time token_count
            generation_config"""),
    },
    "S2": {
        "flags": _names("""
            --model --interactive --prompt --prompts --output --max_new_tokens --temperature
            --top_k --top_p --repetition_penalty --num_return_sequences --stream --device"""),
        "commands": _names("/temp /top_k /top_p /max_tokens /reset /quit /help quit help"),
        "methods": _names("""
            BDH BDH.from_pretrained BDH.generate generate_text generate_batch generate_stream
            torch_dtype eos_token_id pad_token_id"""),
        "files and weights": _names("""
            config.json model.safetensors model.pt tokenizer.json tokenizer_config.json
            generation_config.json training_args.json checkpoint-latest.pt checkpoint-best.pt
            model_state_dict _orig_mod. embed.weight encoder encoder_v decoder lm_head attn.freqs
            lm_gate n_layer n_embd n_head mlp_internal_dim_multiplier vocab_size dropout
            tokenizer_type tokenizer_vocab_size tokenizer_path byte bpe wordpiece unigram"""),
    },
    "S3": {
        "generation": _names("""
            generate generate_batch model tokenizer prompt prompts max_new_tokens temperature
            top_p top_k do_sample device"""),
        "routing": _names("""
            SequenceLevelRouter SequenceRollingRouter RollingWindowRouter TokenLevelRouter
            HybridRouter create_inference_router router strategy window_size route reset_cache
            start_generation reset sequence sequence-rolling rolling token hybrid"""),
        "memory keys": _names("""
            vanilla_mode num_memory_tokens memory_dim memory_num_heads memory_num_kv_heads
            memory_layer_placement memory_layer_k memory_layer_n memory_layer_indices
            memory_sharing memory_sharing_k memory_block_variant memory_dropout
            use_low_rank_memory memory_rank low_rank_mode use_low_rank_projections projection_rank
            use_chapters num_chapters top_k_chapters num_shared_chapters routed_scaling_factor
            normalize_shared_routed_before_mixing shared_routed_norm_type shared_routed_norm_eps
            routing_strategy_train routing_strategy_inference routing_window_size
            token_routing_kernel_version memory_gradient_checkpointing quantize_memory
            memory_quant_bits wo_init_zero memory_init_std use_lora lora_rank lora_alpha
            lora_dropout lora_targets use_memory_adapter use_both_memory_and_lora"""),
        "model keys": _names("""
            hidden_dim num_heads num_kv_heads num_layers intermediate_dim vocab_size max_seq_len
            max_position_embeddings tokenizer_name use_rope rope_theta dropout attention_dropout
            hidden_activation initializer_range norm_eps use_rms_norm base_model_name
            freeze_base_model use_flash_attention tie_embeddings"""),
        "merging and export": _names("""
            quantize_full_model method output_path fp16 bf16 fp32 dynamic fp8 bnb_8bit bnb_4bit
            bnb_fp8 export_to_gguf quantization_type llama_cpp_path quantize_memory_for_deployment
            bits merge_adapter_weights extract_memory_weights"""),
        "files and weights": _names("""
            MemoryAdapter load_config model.pt config.yaml trainer_state.json best_model
            final_model memory_banks routers memory_adapters lora_A lora_B quantized_memory
            scales"""),
    },
    "S4": {
        "flags": _names("""
            --prompt --checkpoint --tokenizer --temp --top_p --max_tokens --device"""),
        "methods": _names("""
            Generator Generator.generate checkpoint_path tokenizer_path device temperature top_p
            max_new_tokens apply_temperature sample_top_p generate_stream
            Generator.generate_batch batch_size use_cache past_kv start_pos eos_token_id"""),
        "files and weights": _names("""
            ckpt.pt model optimizer model_args iter_num best_val_loss model.safetensors
            config.json tokenizer.json tokenizer_config.json ModelArgs dim n_layers n_heads
            n_kv_heads vocab_size multiple_of max_seq_len dropout tok_embeddings.emb.weight
            norm.weight output.weight rope.freqs_cis"""),
    },
}
