"""OpenStack Placement, in process, on an SQLite database in memory, to answer problems of device placement.

Reads a problem a line from standard input, as bench/deviceproblems.go writes it, and prints an answer a line. A machine is a root provider, each
device a child with an inventory for each counter, and each request a granular group of GET /allocation_candidates. Only that query is timed; it goes
through the service's WSGI application, without a network or a token.

    serve.py default    the service's own settings
    serve.py tuned      what its configuration recommends for wide trees (bug 2126751): at most 1000 candidates, breadth first, and the
                        optimization for wide provider trees
"""

import json
import math
import os
import resource
import sys
import time
import uuid

from oslo_config import cfg
from oslo_policy import opts as policy_opts
import webob

from placement import conf as placement_conf
from placement import db_api
from placement import deploy

MEMORY_BYTES = 8 << 30
OUT_OF_MEMORY = 3  # the exit status then
LATEST = "placement latest"


def make_app(tuned):
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    policy_opts.set_defaults(conf)
    conf.set_override("auth_strategy", "noauth2", group="api")
    conf.set_override("connection", "sqlite://", group="placement_database")
    conf.set_override("sync_on_startup", True, group="placement_database")
    if tuned:
        conf.set_override("max_allocation_candidates", 1000, group="placement")
        conf.set_override("allocation_candidates_generation_strategy", "breadth-first", group="placement")
        conf.set_override("optimize_for_wide_provider_trees", True, group="workarounds")
    conf([], default_config_files=[], default_config_dirs=[])
    db_api.configure(conf)
    return deploy.loadapp(conf)


def call(app, method, path, body=None, expect=200):
    request = webob.Request.blank(path, method=method)
    request.headers["X-Auth-Token"] = "admin"
    request.headers["OpenStack-API-Version"] = LATEST
    request.accept = "application/json"
    if body is not None:
        request.content_type = "application/json"
        request.body = json.dumps(body).encode()
    response = request.get_response(app)
    if response.status_int == 500 and "MemoryError" in response.text:
        os._exit(OUT_OF_MEMORY)
    if response.status_int != expect:
        raise SystemExit(f"{method} {path}: {response.status}: {response.text[:2000]}")
    return response


def custom(kind, name):
    return f"CUSTOM_{kind}_{name}".upper().replace("-", "_")


class Machine:
    """The providers of one problem."""

    def __init__(self, app, problem):
        self.app, self.devices, self.providers = app, {}, []
        apart = problem.get("apart")
        names = set()
        self.root = self.provider("machine-" + str(uuid.uuid4()))
        classes = {c for d in problem["devices"] for c in d["has"] if c != apart}
        for name in sorted(classes):
            request = webob.Request.blank("/resource_classes/" + custom("R", name), method="PUT")
            self.put(request)
        for r in problem["requests"]:
            names |= {custom("ON", d) for d in r.get("not") or []}
        for d in problem["devices"]:
            names |= {custom("ON", d["id"])} | {custom("WAY", w) for w in d["ways"]}
        for name in sorted(names):
            self.put(webob.Request.blank("/traits/" + name, method="PUT"))
        for d in problem["devices"]:
            rp = self.provider(d["id"] + "-" + str(uuid.uuid4()), self.root)
            self.devices[rp] = d["id"]
            inventories = {custom("R", c): {"total": n} for c, n in d["has"].items() if c != apart and n > 0}
            call(app, "PUT", f"/resource_providers/{rp}/inventories", {"resource_provider_generation": 0, "inventories": inventories})
            generation = call(app, "GET", f"/resource_providers/{rp}").json["generation"]
            traits = [custom("ON", d["id"])] + [custom("WAY", w) for w in d["ways"]]
            call(app, "PUT", f"/resource_providers/{rp}/traits", {"resource_provider_generation": generation, "traits": traits})
        parts = []
        for i, r in enumerate(problem["requests"], 1):
            takes = problem["ways"][r["way"]]
            amounts = ",".join(f"{custom('R', c)}:{n}" for c, n in sorted(takes.items()) if c != apart)
            required = [custom("WAY", r["way"])] + ["!" + custom("ON", d) for d in r.get("not") or []]
            parts += [f"resources{i}={amounts}", f"required{i}={','.join(required)}"]
        parts.append("group_policy=" + ("isolate" if apart else "none"))
        self.query = "/allocation_candidates?" + "&".join(parts)
        self.count = len(problem["requests"])

    def put(self, request):
        request.headers["X-Auth-Token"] = "admin"
        request.headers["OpenStack-API-Version"] = LATEST
        response = request.get_response(self.app)
        if response.status_int not in (201, 204):
            raise SystemExit(f"{request.path}: {response.status}: {response.text[:2000]}")

    def provider(self, name, parent=None):
        body = {"name": name, "uuid": str(uuid.uuid4())}
        if parent:
            body["parent_provider_uuid"] = parent
        rp = call(self.app, "POST", "/resource_providers", body).json["uuid"]
        self.providers.append(rp)
        return rp

    def remove(self):
        for rp in reversed(self.providers):
            call(self.app, "DELETE", "/resource_providers/" + rp, expect=204)

    def solve(self):
        body = call(self.app, "GET", self.query).json
        found = body["allocation_requests"]
        if not found:
            return {"outcome": "refused", "chosen": [], "answers": 0}
        mappings = found[0]["mappings"]
        chosen = [self.devices[mappings[str(i)][0]] for i in range(1, self.count + 1)]
        return {"outcome": "placed", "chosen": chosen, "answers": len(found)}


def limit_processor_time(seconds):
    """Let the kernel end this process when it has used so much from now on, in whole seconds; None takes the limit away."""
    limit = resource.RLIM_INFINITY
    if seconds is not None:
        limit = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    app = make_app({"default": False, "tuned": True}[sys.argv[1]])
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        machine = Machine(app, task["problem"])
        limit_processor_time(task["limit_seconds"])
        times, start = 0, time.process_time()
        try:
            while times == 0 or time.process_time() - start < task["at_least_seconds"]:
                answer = machine.solve()
                times += 1
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        answer["seconds"] = (time.process_time() - start) / times
        limit_processor_time(None)
        machine.remove()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
