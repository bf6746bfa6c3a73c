"""Who is asked through a proxy, and who is not."""

from __future__ import annotations

from pinnace.network.no_proxy import no_proxy_variables


def test_where_there_is_no_proxy_nothing_is_added() -> None:
    assert no_proxy_variables({"NO_PROXY": "example.org", "https_proxy": ""}, "10.0.0.1") == {}


def test_a_cluster_is_asked_directly_and_so_is_what_was_before() -> None:
    environment = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "example.org,.site", "no_proxy": ".site"}
    expected = "example.org,.site,10.0.0.0/16,host"
    assert no_proxy_variables(environment, "10.0.0.0/16", "host") == {"NO_PROXY": expected, "no_proxy": expected}


def test_every_way_to_name_a_proxy_counts() -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        assert no_proxy_variables({name: "http://proxy:3128"}, "host") == {"NO_PROXY": "host", "no_proxy": "host"}
