"""Creates, shows and deletes a cluster by a client that openapi-python-client made: client.py PACKAGES URL CA TOKEN."""

import ssl
import sys
import time

packages, url, ca, token = sys.argv[1:]
sys.path.insert(0, packages)

from generated import AuthenticatedClient  # noqa: E402
from generated.api.clusters import create_cluster, delete_cluster, get_cluster  # noqa: E402
from generated.models import Cluster, ClusterRequest, Problem  # noqa: E402

PATIENCE_SECONDS = 120

client = AuthenticatedClient(base_url=url, token=token, verify_ssl=ssl.create_default_context(cafile=ca))


def show():
    return get_cluster.sync("generated", client=client)


def await_(what, done):
    """Shows the cluster until it is as wanted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done(seen := show()):
        assert time.monotonic() < deadline, f"{what} in {PATIENCE_SECONDS} s: {seen}"
        time.sleep(0.2)


refused = create_cluster.sync(client=client, body=ClusterRequest(name="Generated"))
assert isinstance(refused, Problem) and refused.code == "invalid_cluster", refused
created = create_cluster.sync(client=client, body=ClusterRequest(name="generated", memory="256MiB"))
assert isinstance(created, Cluster) and created.spec.groups[0].size == 1, created
await_("not ready", lambda c: isinstance(c, Cluster) and c.status.phase.value == "ready")
gone = delete_cluster.sync("generated", client=client)
assert isinstance(gone, Cluster), gone
await_("not gone", lambda c: isinstance(c, Problem) and c.code == "cluster_not_found")
print("created, shown and deleted")
