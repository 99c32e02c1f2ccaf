"""The commands of a chat, and what they make of its settings and its conversation."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from launch import api
from launch.talk.commands import NAMES, Commands, Quit, help_text
from launch.talk.conversation import Conversation
from launch.talk.session import Stream
from pipeline.protocols import FILTERS, STRATEGIES, Capabilities, Cue, Phase, Prompt, spelled
from pipeline.spec import Sampling, SpecError

CUE = Cue("wait", "Wait, let me look again.")


def unseen(text: str, phase: str) -> None:
    """Show nothing."""


def unseen_line(line: str) -> None:
    """Say nothing."""


@pytest.fixture
def talk() -> Iterator[Conversation]:
    with api.load("smollm2", "backend=echo", "sampling.max_new_tokens=90") as session:
        yield Conversation(session, CUE)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def commands(talk: Conversation, said: list[str]) -> Commands:
    return Commands(
        talk, said.append, lambda: talk.retry(unseen), lambda cue: talk.reconsider(cue, unseen)
    )


def test_settings_last_and_are_shown(commands: Commands, said: list[str]) -> None:
    lines = ["/temp 0.3", "/top_k 5", "/top_p 0.9", "/min_p 0.1", "/max_tokens 7", "/penalty 1.2"]
    lines += ["/seed 9", "/system Be short.", "/entropy on", "/think on"]
    for line in lines:
        commands.run(line)
    commands.run("/settings")
    assert said[0].splitlines() == sorted(said[0].splitlines(), key=said[0].splitlines().index)
    assert set(lines) == set(said[0].splitlines())


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("/temp -1", "sampling.temperature must be 0 (greedy) or more, and finite, got -1"),
        ("/temp hot", "/temp must be a number, got 'hot'"),
        ("/temp nan", "sampling.temperature must be 0 (greedy) or more, and finite"),
        ("/top_k 2.5", "/top_k must be a whole number, got '2.5'"),
        ("/top_k -1", "sampling.top_k must be 0 (off) or more, got -1"),
        ("/top_p 0", "sampling.top_p must lie in (0, 1], got 0"),
        ("/min_p 1", "sampling.min_p must lie in [0, 1), got 1"),
        ("/max_tokens 0", "sampling.max_new_tokens must be 1 or more, got 0"),
        ("/penalty 0", "sampling.repetition_penalty must be above 0"),
        ("/seed x", "/seed must be a whole number"),
        ("/seed --5", "/seed must be a whole number, got '--5'"),
        ("/think maybe", "/think must be on or off, got 'maybe'"),
        ("/save", "/save must name a .yaml file"),
        ("/load nothing.yaml", "/load must name a file that /save wrote"),
        ("/retry", "/retry must follow an answer"),
        ("/cue", "/cue must follow an answer"),
        ("/set typical_p 0", "sampling.typical_p must lie in (0, 1], got 0"),
        ("/set typical_p much", "/set typical_p must be a number, got 'much'"),
        ("/set no_repeat_ngram_size 2.5", "/set no_repeat_ngram_size must be a whole number"),
        ("/set num_beams 4", "sampling.temperature must be 0 with sampling.num_beams above 1"),
        ("/set num_samples 4", "/set must name one of temperature, top_p"),
        ("/set typical 0.9", "/set must name one of temperature, top_p"),
        ("/set json_schema nothing.json", "sampling.json_schema must be a mapping, or the name of"),
        ("/set logit_bias {", "/set logit_bias must be YAML"),
        ("/set", "/set must name one of temperature, top_p"),
        ("/save talk.txt", "/save must name a .yaml file (settings) or a .json file"),
        ("/tmep 1", "a command must be one of /temp"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(
    commands: Commands, talk: Conversation, line: str, rule: str
) -> None:
    before = talk.session.sampling
    with pytest.raises(SpecError) as refused:
        commands.run(line)
    assert rule in str(refused.value) and talk.session.sampling == before


def test_every_key_of_sampling_can_be_set_and_is_shown(
    commands: Commands, talk: Conversation, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(talk.session.backend), "capabilities", Capabilities(filters=(*FILTERS, *STRATEGIES))
    )
    lines = ["/temp 0", "/set no_repeat_ngram_size 4", "/set presence_penalty 0.5"]
    lines += ["/set num_beams 4", '/set early_stopping "never"', "/set length_penalty 0.8"]
    for line in lines:
        commands.run(line)
    commands.run("/set logit_bias {2: -100}")
    commands.run("/settings")
    assert {*lines[1:], '/set logit_bias {"2": -100.0}'} <= set(said[0].splitlines())
    assert talk.session.sampling.logit_bias == {2: -100.0}


def test_what_the_backend_does_not_take_is_refused(commands: Commands, talk: Conversation) -> None:
    before = talk.session.sampling
    with pytest.raises(SpecError, match=r"sampling.typical_p must be 1 \(off\) with backend echo"):
        commands.run("/set typical_p 0.9")
    assert talk.session.sampling == before


def test_what_would_need_another_decoder_is_refused_where_it_is_set() -> None:
    line = ("quantization=fp32", "sampling=greedy", "sampling.max_new_tokens=3")
    rule = "num_beams must be set before the model is loaded"
    with api.load("bdh_tiny", *line) as session:
        talk = Conversation(session, CUE)
        commands = Commands(talk, unseen_line, lambda: None, lambda cue: None)
        with pytest.raises(SpecError, match=rule):
            commands.run("/set num_beams 2")
        commands.run("/set typical_p 0.9")
        assert talk.ask("Once", unseen).generations[0].count == 3


def test_saved_settings_are_a_sampling_option(
    commands: Commands, talk: Conversation, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    commands.run("/temp 0.25")
    commands.run(f"/save {path}")
    kept = talk.session.sampling
    commands.run("/temp 1")
    commands.run(f"/load {path}")
    assert talk.session.sampling == kept and kept.temperature == 0.25
    words = [f"sampling.{key}={value}" for key, value in yaml.safe_load(path.read_text()).items()]
    spec = api.compose("task=prompts", "backend=echo", *words).spec
    assert spec.sampling == kept


def test_a_saved_conversation_goes_on(
    commands: Commands, talk: Conversation, tmp_path: Path
) -> None:
    talk.ask("red green", unseen)
    path = tmp_path / "talk.json"
    commands.run(f"/save {path}")
    texts = [spelled(message.content) for message in talk.messages]
    commands.run("/reset")
    assert talk.messages == [] and talk.last is None
    commands.run(f"/load {path}")
    assert [spelled(message.content) for message in talk.messages] == texts != []


def test_a_conversation_is_kept_with_its_ids_until_reset(talk: Conversation) -> None:
    first = talk.ask("red green", unseen)
    second = talk.ask("and blue", unseen)
    roles = [message.role for message in second.prompt.messages]
    assert roles == ["user", "assistant", "user"]
    assert second.prompt.messages[1].content == first.generations


def test_retry_replaces_the_last_answer_by_another(talk: Conversation) -> None:
    talk.ask(" ".join(map(str, range(50))), unseen)
    texts = {talk.retry(unseen).text for _ in range(4)}
    assert len(texts) > 1 and len(talk.messages) == 2


def test_the_same_conversation_gives_the_same_text_however_long_it_took() -> None:
    line = ("quantization=fp32", "sampling.temperature=1.2", "sampling.max_new_tokens=8")
    with api.load("bdh_tiny", *line) as session:
        first, again = Conversation(session, CUE), Conversation(session, CUE)
        turns = [[talk.ask(text, unseen) for text in ("Once", "Twice")] for talk in (first, again)]
        first.reset()
        third = [first.ask(text, unseen).text for text in ("Once", "Twice")]
    texts, seconds = (
        [[read(answer) for answer in answers] for answers in turns]
        for read in (lambda a: a.text, lambda a: a.generations[0].seconds)
    )
    assert texts[0] == texts[1] == third and seconds[0] != seconds[1]


def test_a_cue_asks_as_pass_2_of_a_run_does(talk: Conversation) -> None:
    talk.ask("red green", unseen)
    before, after = talk.reconsider(CUE, unseen)
    question, turn, cue = after.prompt.messages
    assert turn.content == before.generations and cue.content == (CUE.text,)
    assert after.text.startswith(f"{CUE.text} ") and after.text != before.text
    again = talk.reconsider(CUE, unseen)[1]
    assert spelled(again.prompt.messages[-2].content) == after.text


def test_thinking_has_a_phase_of_its_own(talk: Conversation) -> None:
    talk.switch_thinking(True)
    phases: list[str] = []
    answer = talk.ask("red green", lambda text, phase: phases.append(phase))
    assert list(dict.fromkeys(phases)) == ["think", "answer"] and len(answer.generations) == 2
    assert answer.text.startswith("<think>\n") and answer.text.endswith("</answer>")
    _, after = talk.reconsider(CUE, unseen)
    assert after.text.startswith(f"<think>\n{CUE.text} ")


def test_completion_continues_the_text_and_refuses_what_needs_turns() -> None:
    line = ("mode=completion", "quantization=fp32", "sampling.max_new_tokens=4")
    with api.load("bdh_tiny", *line) as session:
        talk = Conversation(session, CUE)
        first = talk.ask("Once upon", unseen)
        assert first.generations[0].prompt_ids == list(b"Once upon")
        second = talk.ask(" a time", unseen)
        ids = [*b"Once upon", *first.generations[0].token_ids, *b" a time"]
        assert second.generations[0].prompt_ids == ids
        for work in (lambda: talk.reconsider(CUE, unseen), lambda: talk.switch_thinking(True)):
            with pytest.raises(SpecError, match="mode=c"):
                work()


def test_a_saved_text_goes_on(tmp_path: Path) -> None:
    line = ("mode=completion", "quantization=fp32", "sampling.max_new_tokens=4")
    path = tmp_path / "story.txt"
    with api.load("bdh_tiny", *line) as session:
        talk = Conversation(session, CUE)
        commands = Commands(talk, unseen_line, lambda: None, lambda cue: None)
        said = talk.ask("Once upon", unseen).text
        commands.run(f"/save {path}")
        assert path.read_text() == f"Once upon{said}"
        commands.run("/reset")
        commands.run(f"/load {path}")
        again = talk.ask(" a time", unseen).generations[0]
        assert again.prompt_ids == list(f"Once upon{said} a time".encode())
        with pytest.raises(SpecError, match=r"or a \.txt file \(the text\)"):
            commands.run("/save talk.json")


def test_a_form_is_for_the_answer_and_not_for_the_thinking(talk: Conversation) -> None:
    asked: list[str | None] = []
    stream = talk.session.stream_prompt

    def noted(prompt: Prompt, sample: int, phase: Phase, sampling: Sampling) -> Stream:
        asked.append(sampling.regex)
        return stream(prompt, sample, phase, sampling)

    talk.session.stream_prompt = noted  # type: ignore[method-assign, assignment]
    talk.session.sampling = Sampling(regex="[a-z ]+")
    talk.switch_thinking(True)
    talk.ask("red green", unseen)
    assert asked == [None, "[a-z ]+"]


def test_bare_words_end_and_help(commands: Commands, said: list[str]) -> None:
    assert commands.is_command("quit") and not commands.is_command("quit smoking")
    with pytest.raises(Quit):
        commands.run("quit")
    commands.run("help")
    assert said == [help_text()] and all(name in said[0] for name in NAMES)


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("deep.json", "[" * 200_000, "/load must name a file that /save wrote"),
        ("deep.yaml", "[" * 20_000, "/load must name a file that /save wrote"),
        ("half.json", '[{"role": "user", "content": "\\ud800"}]', "content must be text without"),
        ("odd.json", '[{"role": "user", "content": 5}]', "content must be text without"),
    ],
)
def test_a_file_that_no_save_wrote_is_refused_and_the_conversation_stays(
    commands: Commands, talk: Conversation, tmp_path: Path, name: str, content: str, rule: str
) -> None:
    talk.ask("red red", unseen)
    before = list(talk.messages)
    (tmp_path / name).write_text(content)
    with pytest.raises(SpecError, match=rule):
        commands.run(f"/load {tmp_path / name}")
    assert talk.messages == before
