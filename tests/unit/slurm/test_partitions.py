"""What sinfo says of partitions."""

from __future__ import annotations

from pinnace.slurm.partitions import parse_sinfo


def test_partitions_of_sinfo() -> None:
    text = (
        "main|2|8|8000|1-00:00:00|cpu,rack1|up\nmain|1|4|4000|1-00:00:00|gpu|up\nlong|1|8|8000|infinite|(null)|down\n"
    )
    main, long = parse_sinfo(text)
    assert (main.nodes, main.cpus, main.memory, main.minutes) == (3, 4, 4000, 1440)
    assert main.features == ("cpu", "gpu", "rack1")
    assert (long.minutes, long.features, long.up) == (None, (), False)
