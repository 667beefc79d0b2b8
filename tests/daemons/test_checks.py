"""--check finds what would stop the start, in the files that settings name; it makes nothing."""

import pytest

from mqbroker.daemons.broker import BrokerConsoleOptions
from mqbroker.daemons.namesrv import NamesrvConsoleOptions
from tests.remoting.certificates import Authority

BOTH = pytest.mark.parametrize("daemon_options", [BrokerConsoleOptions, NamesrvConsoleOptions])
ACCOUNTS = "accounts:\n- accessKey: somebody\n  secretKey: much-longer-than-six\n  admin: true\n"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def check(tmp_path, capsys):
    """What --check ends with, for settings: 0, or what is wrong; and what it printed."""

    def check(daemon_options, **settings):
        # Given here they count before what the environment says.
        given = {"rocketmqHome": tmp_path} | settings if daemon_options is BrokerConsoleOptions else settings
        options = [part for key, value in given.items() for part in ("-o", f"{key.replace('__', '.')}={value}")]
        before = set(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as ended:
            daemon_options().parseOptions([*options, "--check"])
        assert set(tmp_path.rglob("*")) == before
        return ended.value.code, capsys.readouterr().out

    return check


@BOTH
def test_a_certificate_that_cannot_be_read(check, authority, daemon_options):
    cert, _ = authority.issue("server")
    tls = {"tls__test__mode__enable": "false", "tls__server__certPath": cert, "tls__server__keyPath": "/not/there"}
    assert check(daemon_options, **tls) == ("/not/there: No such file or directory", "")
    # Read by nobody, it is not looked at.
    assert check(daemon_options, **tls, tls__server__mode="disabled") == (0, "the settings are good\n")


@BOTH
def test_a_certificate_that_can_be_read(check, authority, daemon_options):
    cert, key = authority.issue("server")
    tls = {"tls__test__mode__enable": "false", "tls__server__certPath": cert, "tls__server__keyPath": key}
    assert check(daemon_options, **tls) == (0, "the settings are good\n")


def test_the_certificate_a_broker_shows_to_name_servers(check, authority):
    cert, key = authority.issue("server")
    tls = {"tls__test__mode__enable": "false", "tls__server__certPath": cert, "tls__server__keyPath": key}
    tls |= {"tls__client__certPath": cert, "tls__client__keyPath": "/not/there"}
    assert check(BrokerConsoleOptions, **tls, useTLS="true") == ("/not/there: No such file or directory", "")
    assert check(BrokerConsoleOptions, **tls, useTLS="false") == (0, "the settings are good\n")


def test_accounts(check, tmp_path):
    path = tmp_path / "conf" / "plain_acl.yml"
    missing = f"warning: {path} is not there: nobody has an account, and nobody is served\nthe settings are good\n"
    assert check(BrokerConsoleOptions, aclEnable="true") == (0, missing)
    path.parent.mkdir()
    path.write_text("accounts: [")
    why, out = check(BrokerConsoleOptions, aclEnable="true")
    assert why.startswith(f"{path}: ")
    assert out == ""
    assert check(BrokerConsoleOptions, aclEnable="false") == (0, "the settings are good\n")
    path.write_text(ACCOUNTS)
    path.chmod(0o644)
    exposed = f"{path} can be read by others, who can sign as anybody in it: chmod 600 {path}"
    assert check(BrokerConsoleOptions, aclEnable="true") == (0, f"warning: {exposed}\nthe settings are good\n")
    path.chmod(0o600)
    assert check(BrokerConsoleOptions, aclEnable="true") == (0, "the settings are good\n")
