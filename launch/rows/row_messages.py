"""The messages that stored rows answered, for tables of them."""

from pathlib import Path
from typing import Any

from launch.rows.inferencer_schemas import system_and_user
from launch.rows.stored_task import StoredTasks, prompt_of
from pipeline.analysis.table import Table
from pipeline.backfill.stored_rows import example_of
from pipeline.store.files import Row


class RowMessages:
    """The messages of rows, by the task of their run's record, else by that of conf/task."""

    def __init__(self, table: Table, config_dir: str) -> None:
        """`config_dir`: a folder of configuration that names tasks as conf/ does, or nothing."""
        self._folders = [file.path.parent for file in table.files]
        self._files = table.rows["file"]
        self._tasks = StoredTasks(config_dirs=[Path(config_dir)] if config_dir else [])

    def of(self, index: Any, row: Row) -> tuple[str | None, str]:
        """System prompt (None without one) and the last user message of pass 1."""
        task = self._tasks.of(self._folders[self._files[index]], row)
        return system_and_user(prompt_of(task, example_of(row)))
