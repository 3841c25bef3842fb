"""Read and write of Ray Data in one call."""

from __future__ import annotations

import os
from typing import Any

from winkfs.errors import WinkError, need


def read(
    path: str | os.PathLike[str], columns: Any = None, *, override_num_blocks: int | None = None,
    concurrency: int | None = None, ray_remote_args: dict[str, Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Return the files of a store as a Dataset of Ray.

    columns, options     see `WinkDatasource`: where, prefix, since, until, as_of, batch_bytes,
                         on_error
    override_num_blocks  number of tasks; concurrency, ray_remote_args: see
                         `ray.data.read_datasource`
    raises               as `winkfs.open`; ValueError; Refusal without Ray
    """
    need("ray.data", "winkfs.ray", "ray")
    import ray.data

    from winkfs.ray.datasource import WinkDatasource

    return ray.data.read_datasource(
        WinkDatasource(path, columns, **options), override_num_blocks=override_num_blocks,
        concurrency=concurrency, ray_remote_args=ray_remote_args,
    )  # fmt: skip


def write(
    dataset: Any, path: str | os.PathLike[str], *, mode: str = "append",
    compress: str | None = None, concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a Dataset of Ray into a data set with one commit: see `WinkDatasink`.

    raises  ValueError; OSError; errors of Ray. Then nothing is published, also after an interrupt
    """
    need("ray.data", "winkfs.ray", "ray")
    from winkfs.ray.datasink import WinkDatasink

    sink = WinkDatasink(path, mode=mode, compress=compress)
    try:
        dataset.write_datasink(sink, concurrency=concurrency, ray_remote_args=ray_remote_args)
    except BaseException as error:
        sink.abort()
        cause = getattr(error, "cause", None)  # of an error in a task
        if isinstance(cause, WinkError):
            raise cause from None
        raise
