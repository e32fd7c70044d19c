"""Goal: a node gets what options, environment and file say, in this order, and nothing by mistake."""

import pytest

from raftq.cli.node_settings import load_settings, parse_cluster
from raftq.errors import InvalidArgument

FILE = """
name = "n1"
data = "d"
admin_listen = "127.0.0.1:1"
groups = 5
[cluster]
n1 = "a:1"
n2 = "b:2"
[labels]
rack = "r1"
"""


def test_a_cluster_is_a_list_of_names_and_addresses():
    assert parse_cluster("n1=a:1, n2=[::1]:2") == {"n1": "a:1", "n2": "[::1]:2"}


@pytest.mark.parametrize("text", ["", "n1", "=a:1", "n1=", "n1=a:1,,n2=b:2", "n1=a:1,n1=b:2"])
def test_others_are_refused(text):
    with pytest.raises(InvalidArgument, match="--cluster"):
        parse_cluster(text)


def test_what_is_given_wins_over_the_file(tmp_path):
    path = tmp_path / "n1.toml"
    path.write_text(FILE)
    settings = load_settings(path, {"groups": 7, "data": None, "listen": "c:3"})
    assert (settings.name, settings.data, settings.groups) == ("n1", "d", 7)
    assert (settings.listen, settings.labels) == ("c:3", {"rack": "r1"})
    assert settings.members() == {"n1": "a:1", "n2": "b:2"}


@pytest.mark.parametrize(
    ("line", "named"),
    [("unknown = 1", "unknown"), ('groups = "many"', "groups"), ("= 1", "n1.toml")],
)
def test_a_wrong_file_is_refused(tmp_path, line, named):
    path = tmp_path / "n1.toml"
    path.write_text(f'name = "n1"\ndata = "d"\n{line}\n')
    with pytest.raises(InvalidArgument, match=named):
        load_settings(path, {})


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="nothing"):
        load_settings(tmp_path / "nothing", {})


@pytest.mark.parametrize("given", [{"data": "d"}, {"name": "n1"}])
def test_name_and_data_are_needed(given):
    with pytest.raises(InvalidArgument, match="a node needs"):
        load_settings(None, given)


def settings(**given):
    return load_settings(None, {"name": "n1", "data": "d", **given})


def test_who_belongs_to_the_cluster_must_be_said():
    with pytest.raises(InvalidArgument, match="--cluster"):
        settings().members()
    assert settings(peer_listen="a:1").members() == {"n1": "a:1"}
    with pytest.raises(InvalidArgument, match="not this node"):
        settings(cluster="n2=b:2").members()


def test_a_node_listens_where_it_is_looked_for():
    assert settings(cluster="n1=a:1", peer_listen="a:1").members() == {"n1": "a:1"}
    with pytest.raises(InvalidArgument, match="look for it"):
        settings(cluster="n1=a:1", peer_listen="b:1").members()


def test_the_command_reports_bad_settings_in_one_line(run):
    result = run("node", "--name", "n1", "--data", "d", "--cluster", "n2=b:2")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("InvalidArgument: --cluster names n2")
    assert result.stderr.count("\n") == 1
