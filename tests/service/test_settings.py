"""Settings: file, environment, options; and what the server refuses to do."""

import pytest

from fedbandit.errors import InvalidParameter
from fedbandit.service.settings import ServerSettings, read_settings


def test_options_beat_the_environment_which_beats_the_file(tmp_path):
    file = tmp_path / "fedbandit.toml"
    file.write_text('port = 1\nmax_queue = 10\nlog_level = "error"\n')
    environ = {"FEDBANDIT_PORT": "2", "FEDBANDIT_MAX_QUEUE": "20", "FEDBANDIT_INSECURE": "true"}
    settings = read_settings({"port": 3, "host": None}, file=file, environ=environ)
    assert (settings.port, settings.max_queue, settings.log_level, settings.insecure) == (3, 20, "error", True)
    assert settings.host == "127.0.0.1"


def test_a_data_directory_given_as_an_option_beats_a_database_from_elsewhere():
    environ = {"FEDBANDIT_DATABASE": "postgresql://somewhere/x"}
    assert read_settings({"data": "here"}, environ=environ).database == ""
    assert read_settings({}, environ=environ).database == "postgresql://somewhere/x"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_a_public_address_needs_tls_or_an_explicit_word(host):
    with pytest.raises(InvalidParameter, match="TLS"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, insecure=True).scheme == "http"
    assert ServerSettings(host=host, tls_cert="c", tls_key="k").scheme == "https"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_no_tls(host):
    assert ServerSettings(host=host).host == host


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000},
        {"max_queue": 0},
        {"max_batch": 501},
        {"tls_cert": "c"},
        {"client_ca": "c"},
        {"log_level": "loud"},
        {"database": "mysql://x"},
        {"body_timeout_s": 0.0},
    ],
)
def test_settings_out_of_range_are_told(wrong):
    with pytest.raises(InvalidParameter):
        ServerSettings(**wrong)


@pytest.mark.parametrize("text", ["colour = 1", "port = ", 'port = "many"'])
def test_a_file_with_mistakes_is_told(tmp_path, text):
    file = tmp_path / "fedbandit.toml"
    file.write_text(text)
    with pytest.raises(InvalidParameter):
        read_settings({}, file=file, environ={})
    with pytest.raises(InvalidParameter, match="read"):
        read_settings({}, file=tmp_path / "nowhere.toml", environ={})


def test_a_word_in_the_environment_that_is_no_number_is_told():
    with pytest.raises(InvalidParameter, match="FEDBANDIT_PORT"):
        read_settings({}, environ={"FEDBANDIT_PORT": "many"})
    with pytest.raises(InvalidParameter, match="FEDBANDIT_INSECURE"):
        read_settings({}, environ={"FEDBANDIT_INSECURE": "perhaps"})
