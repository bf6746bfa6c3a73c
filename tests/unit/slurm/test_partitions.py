"""What sinfo says of partitions."""

from __future__ import annotations

from pinnace.slurm.partitions import parse_node_classes, parse_sinfo


def test_partitions_of_sinfo() -> None:
    text = (
        "main|2|8|8000|1-00:00:00|cpu,rack1|up\nmain|1|4|4000|1-00:00:00|gpu|up\nlong|1|8|8000|infinite|(null)|down\n"
    )
    main, long = parse_sinfo(text)
    assert (main.nodes, main.cpus, main.memory, main.minutes) == (3, 4, 4000, 1440)
    assert main.features == ("cpu", "gpu", "rack1")
    assert (long.minutes, long.features, long.up) == (None, (), False)


def test_nodes_to_which_slurm_gives_no_jobs_are_not_usable() -> None:
    states = ("idle*", "idle$", "idle!", "idle%", "idle@", "idle^", "mixed*", "allocated$", "completing*", "draining")
    text = "".join(f"n{number}|8|8000|(null)|{state}\n" for number, state in enumerate(states))
    (kind,) = parse_node_classes(text)
    assert (kind.count, kind.usable) == (len(states), ())


def test_idle_nodes_that_are_up_come_first() -> None:
    states = ("allocated+", "mixed-", "idle~", "idle#", "completing", "idle", "allocated")
    (kind,) = parse_node_classes("".join(f"{state}|8|8000|(null)|{state}\n" for state in states))
    assert kind.usable == ("idle", "idle~", "idle#", "mixed-", "allocated", "allocated+", "completing")
