"""The settings of brokers that elect their master."""

from pathlib import Path

import pytest

from mqbroker.config import load_broker_settings
from mqbroker.errors import BadSetting
from tests.config.test_load import Loader


@pytest.fixture
def broker(tmp_path: Path) -> Loader:
    return Loader(tmp_path / "broker.conf", load_broker_settings)


GROUP = "etcdEndpoints=http://10.0.0.8:2379;http://10.0.0.9:2379\nbrokerRole=SYNC_MASTER\nbrokerId=2\n"


def test_a_broker_that_elects_its_master_keeps_its_id(broker: Loader) -> None:
    settings = broker(GROUP)
    assert (settings.broker_id, settings.etcd_endpoints) == (2, ("http://10.0.0.8:2379", "http://10.0.0.9:2379"))
    assert broker(GROUP.replace(";", ",")).etcd_endpoints == settings.etcd_endpoints
    assert broker.warnings == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("brokerRole=ASYNC_MASTER", "set brokerRole=SYNC_MASTER on each broker"),
        ("brokerRole=SLAVE", "set brokerRole=SYNC_MASTER on each broker"),
        ("brokerId=0", "needs its own brokerId above 0; set brokerId=1"),
        ("haMasterAddress=10.0.0.1:10912", "leave out haMasterAddress"),
        ("haListenPort=0", "set haListenPort"),
        ("minInSyncReplicas=4", "minInSyncReplicas must not be more than replicationFactor"),
        ("aclEnable=true\nrocketmqHome=/h", "set haSecretFile, or haWhiteRemoteAddresses"),
        ("etcdUsername=mq", "etcdUsername and etcdPasswordFile go together"),
        ("etcdPasswordFile=/p", "etcdUsername and etcdPasswordFile go together"),
        ("etcdCertFile=/c", "etcdCertFile and etcdKeyFile go together"),
        ("etcdKeyFile=/k", "etcdCertFile and etcdKeyFile go together"),
        ("etcdCaFile=/a", "https endpoints, and http://10.0.0.8:2379 is not one"),
        ("etcdCertFile=/c\netcdKeyFile=/k", "https endpoints, and http://10.0.0.8:2379 is not one"),
    ],
)
def test_what_a_group_needs_is_told(broker: Loader, more: str, why: str) -> None:
    key = more.partition("=")[0]
    kept = "".join(f"{line}\n" for line in GROUP.splitlines() if not line.startswith(f"{key}="))
    with pytest.raises(BadSetting, match="etcdEndpoints: ") as caught:
        broker(f"namesrvAddr=a:1\n{kept}{more}\n")
    assert why in str(caught.value)


@pytest.mark.parametrize("value", ["a:2379", "http://", "http://x", "ftp://x:1", "http://x:1/v3", "http://a b:1"])
def test_endpoints_that_are_no_urls_are_refused(broker: Loader, value: str) -> None:
    with pytest.raises(BadSetting, match="etcdEndpoints"):
        broker(GROUP.replace("http://10.0.0.8:2379", value))


def test_the_settings_of_dledger_are_answered_with_ours(broker: Loader) -> None:
    with pytest.raises(BadSetting) as caught:
        broker("enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-a:1\ndLegerSelfId=n0\n")
    for setting in ("brokerRole=SYNC_MASTER", "brokerId=1", "etcdEndpoints=http://HOST:2379"):
        assert setting in str(caught.value)
