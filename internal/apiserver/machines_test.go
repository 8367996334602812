package apiserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// machineErrors makes the errors about machines, builds and environments occur.
func machineErrors(t *testing.T) []errorCase {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Provisioning = apiservertest.Provisioning(4) })
	s.AddNode("agent", 2)
	for i, name := range []string{"n1", "n2", "n3"} {
		s.Enroll(name, i+1)
	}
	s.AddImage("e", 1<<30, api.StackMetal, api.StackContainer)
	s.AddImage("huge", 1<<40, api.StackMetal)
	s.AddImage("bare", 0, api.StackContainer)
	s.SetMachine("n2", func(rec *api.MachineRecord) {
		rec.Phase, rec.Boot = api.MachineReady, &api.Boot{Purpose: api.BootEnvironment, Environment: "e", Digest: string(image.DigestOf([]byte("e")))}
	})
	do := func(method, path, body string) func() *http.Response {
		return func() *http.Response { return send(t, s, request{method: method, path: path, body: body}) }
	}
	agent := func(method, path, body string) func() *http.Response {
		return func() *http.Response {
			return sendTCP(t, s, trust.RoleAgent, request{method: method, path: path, body: body})
		}
	}
	enroll := func(name, mac string) string {
		return fmt.Sprintf(`{"name": %q, "spec": {"macs": [%q], "power": {"kind": "wol"}, "console": "", "firmware": "", "labels": {}}}`, name, mac)
	}
	s.Build("b1", "agent-1")
	busy := apiservertest.New(t, memory.New(), nil)
	busy.AddNode("n9", 2)
	return []errorCase{
		{"machine_exists", `"n1"`, do("POST", "/v1/nodes", enroll("n1", "52:54:00:00:01:01"))},
		{"machine_exists", `"agent"`, do("POST", "/v1/nodes", enroll("agent", "52:54:00:00:01:01"))},
		{"duplicate_mac", `52:54:00:00:00:02 already belongs to machine "n2"`, do("POST", "/v1/nodes", enroll("n4", "52-54-00-00-00-02"))},
		{"invalid_request", "group address", do("POST", "/v1/nodes", enroll("n4", "53:54:00:00:00:02"))},
		{"range_too_small", "10.9.0.10-10.9.0.13 has 4 addresses", func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/nodes", body: enroll("n4", "52:54:00:00:00:04")})
			return send(t, s, request{method: "POST", path: "/v1/nodes", body: enroll("n5", "52:54:00:00:00:05")})
		}},
		{"no_provisioning_network", "--provision INTERFACE", func() *http.Response {
			without := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Provisioning = nil })
			return send(t, without, request{method: "POST", path: "/v1/nodes", body: enroll("n1", "52:54:00:00:00:01")})
		}},
		{"not_a_machine", "joined by itself", do("PUT", "/v1/nodes/agent", enroll("agent", "52:54:00:00:00:01"))},
		{"node_not_found", `"nix"`, do("PUT", "/v1/nodes/nix", enroll("nix", "52:54:00:00:00:01"))},
		{"invalid_request", "a machine can't be renamed", do("PUT", "/v1/nodes/n1", enroll("n9", "52:54:00:00:00:01"))},
		{"invalid_request", "can't be changed", do("PUT", "/v1/nodes/n1", enroll("n1", "52:54:00:00:00:09"))},
		{"not_a_machine", "joined by itself", do("POST", "/v1/nodes/agent/power", `{"action": "off"}`)},
		{"node_not_found", `"nix"`, do("POST", "/v1/power", `{"action": "off", "nodes": ["n1", "nix"]}`)},
		{"empty_selection", "names no node", do("POST", "/v1/power", `{"action": "off"}`)},
		{"empty_selection", "none of the 4 machines has the labels rack=r9", do("POST", "/v1/power", `{"action": "off", "selector": {"rack": "r9"}}`)},
		{"invalid_request", "selector", do("POST", "/v1/power", `{"action": "off", "selector": {"a b": "r9"}}`)},
		{"invalid_request", "name the nodes", do("POST", "/v1/power", `{"action": "off", "selector": {"rack": "r1"}, "force": true}`)},
		{"invalid_request", "name the environment to boot", do("POST", "/v1/nodes/n1/power", `{"action": "on"}`)},
		{"unknown_environment", `did you mean "huge"?`, do("POST", "/v1/nodes/n1/power", `{"action": "on", "environment": "hug"}`)},
		{"incompatible_environment", "needs 1099511627776 bytes", do("POST", "/v1/nodes/n1/power", `{"action": "on", "environment": "huge"}`)},
		{"incompatible_environment", "has no kernel", do("POST", "/v1/nodes/n1/power", `{"action": "on", "environment": "bare"}`)},
		{"no_boot", "never booted", do("POST", "/v1/nodes/n1/power", `{"action": "cycle"}`)},
		{"no_boot", "its console has no login", do("GET", "/v1/nodes/n3/console-login", "")},
		{"no_bmc_password", "no BMC password", do("GET", "/v1/nodes/n3/bmc-login", "")},
		{"power_conflict", "admin requested power on with e", func() *http.Response {
			send(t, s, request{method: "POST", path: "/v1/nodes/n1/power", body: `{"action": "on", "environment": "e"}`})
			return send(t, s, request{method: "POST", path: "/v1/nodes/n1/power", body: `{"action": "off"}`})
		}},
		{"power_conflict", "being removed", func() *http.Response {
			send(t, s, request{method: "DELETE", path: "/v1/nodes/n3"})
			return send(t, s, request{method: "POST", path: "/v1/nodes/n3/inspect"})
		}},
		{"enroll_token_not_found", `"nix"`, do("DELETE", "/v1/enroll-tokens/nix", "")},
		{"console_unreachable", "nobody answers", func() *http.Response {
			s.Consoles.SetBroken(errors.New("nobody answers"))
			return send(t, s, tunnelRequest("/v1/nodes/n1/console"))
		}},
		{"upgrade_required", "HTTP/1.1", do("GET", "/v1/nodes/n1/console", "")},
		{"environment_in_use", "machine n2", do("DELETE", "/v1/environments/e", "")},
		{"environment_in_use", "belongs to the nodes", do("DELETE", "/v1/environments/local", "")},
		{"build_not_found", `"nix"`, do("GET", "/v1/builds/nix/log", "")},
		{"recipe_not_found", `did you mean "debian-mpi"?`, do("POST", "/v1/builds", `{"shipped": "debian-mp"}`)},
		{"invalid_recipe", "line 2: pakages: is not a field", do("POST", "/v1/builds", `{"recipe": "name: x\npakages: []\n"}`)},
		{"invalid_recipe", "choose another name", do("POST", "/v1/builds", `{"recipe": "name: local\n"}`)},
		{"image_not_found", "sha256:", agent("GET", "/agent/v1/images/"+strings.Repeat("0", 64), "")},
		{"digest_mismatch", "is not a digest", agent("GET", "/agent/v1/images/ABC", "")},
		{"digest_mismatch", "send it again", agent("PUT", "/agent/v1/images/"+strings.Repeat("0", 64), "x")},
		{"invalid_request", `is already the BMC of machine "n5"`, func() *http.Response {
			s := apiservertest.New(t, memory.New(), nil)
			of := `{"name": "%s", "spec": {"macs": ["%s"], "power": {"kind": "ipmi", "address": "%s", "user": "admin"}}}`
			fine := send(t, s, request{method: "POST", path: "/v1/nodes", body: fmt.Sprintf(of, "n5", "52:54:00:00:00:05", "bmc5")})
			if fine.StatusCode != http.StatusCreated {
				return fine
			}
			return send(t, s, request{method: "POST", path: "/v1/nodes", body: fmt.Sprintf(of, "n6", "52:54:00:00:00:06", "BMC5:623")})
		}},
		{"no_space", "2 GiB are free", func() *http.Response {
			s.Images.SetFull(fmt.Errorf("2 GiB are free: %w", syscall.ENOSPC))
			return sendTCP(t, s, trust.RoleAgent, request{method: "PUT", path: "/agent/v1/images/" + strings.Repeat("0", 64), body: "x"})
		}},
	}
}

// answer decodes an answer that must be a success.
func answer[T any](t *testing.T, resp *http.Response) T {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s, %v: %s", resp.Status, err, data)
	}
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return v
}

func TestAMachineIsEnrolledWithItsPasswordSealed(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	n := answer[api.Node](t, send(t, s, request{method: "POST", path: "/v1/nodes", body: `{"name": "n1", "inspect": true, "password": "open sesame",
		"spec": {"macs": ["52-54-00-00-00-0A"], "power": {"kind": "ipmi", "address": "bmc1", "user": "operator"}, "console": "ipmi-sol"}}`}))
	if n.Phase != "enrolled" || n.Machine == nil || n.Machine.Record.Phase != api.MachineEnrolled {
		t.Errorf("the node: %+v", n)
	}
	m := s.Cache.View().Machine("n1")
	if got, want := string(m.Intent.Sealed), m.UID()+":open sesame"; got != want {
		t.Errorf("sealed %q, want %q", got, want)
	}
	if m.Intent.Inspect != 1 || m.Intent.By != "admin" || m.Intent.Spec.MACs[0] != "52:54:00:00:00:0a" || m.Intent.Spec.Power.Address != "bmc1:623" {
		t.Errorf("the intent: %+v", m.Intent)
	}
	for _, path := range []string{"/v1/nodes", "/v1/nodes/n1"} {
		resp := send(t, s, request{method: "GET", path: path})
		data, err := io.ReadAll(resp.Body)
		if err != nil || strings.Contains(string(data), "sesame") || strings.Contains(string(data), "sealed") {
			t.Errorf("%s shows the password: %s, %v", path, data, err)
		}
	}
}

func TestNodesShowTheirMachinesAndReadersNotHowToReachTheirSwitches(t *testing.T) {
	warm := 41.0
	read := &api.MachineSensors{State: api.SensorWarning, Message: "CPU 41 °C (warning)", Sensors: []api.Sensor{{Name: "CPU", Kind: api.SensorTemperature, Value: &warm}}}
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Sensors = func(string) *api.MachineSensors { return read } })
	s.AddNode("n2", 2)
	s.Enroll("n1", 3)
	n := answer[api.Node](t, send(t, s, request{method: "GET", path: "/v1/nodes/n1"}))
	want := api.NodePhase("off")
	if n.Phase != want || n.Message != "" || n.Machine.Address.String() != "10.9.0.13" || n.Machine.TargetSeconds != 60 ||
		n.Machine.Hardware.MemoryBytes != 4<<30 || n.Machine.Hardware.EnrollmentToken != "" || n.Machine.Spec.Power.User != "operator" {
		t.Errorf("the node: %+v %+v", n, n.Machine)
	}
	all := answer[api.List[api.Node]](t, send(t, s, request{method: "GET", path: "/v1/nodes"})).Items
	if len(all) != 2 || all[0].Name != "n1" || all[0].Machine.Hardware.CPU.Cores != 4 || all[0].Machine.Hardware.Product != "" || all[1].Machine != nil {
		t.Errorf("the list: %+v", all)
	}
	viewer, err := s.ClientAs("vic", "default", api.RoleViewer).Node(t.Context(), "n1")
	if err != nil || viewer.Machine.Spec.Power != (api.PowerControl{Kind: api.PowerRedfish}) || viewer.Machine.Spec.Console != "" {
		t.Errorf("a viewer sees %+v, %v", viewer.Machine, err)
	}
	if got := viewer.Machine.Sensors; got == nil || got.State != api.SensorWarning || len(got.Sensors) > 0 || got.Message != "" {
		t.Errorf("a viewer sees the sensors %+v; want their state alone", got)
	}
	if got := n.Machine.Sensors; got == nil || len(got.Sensors) != 1 || *got.Sensors[0].Value != 41 {
		t.Errorf("an administrator sees the sensors %+v; want the reading", got)
	}

	s.SetMachine("n1", func(rec *api.MachineRecord) {
		rec.Phase, rec.Message = api.MachineFailed, "the kernel was never asked for"
	})
	n = answer[api.Node](t, send(t, s, request{method: "GET", path: "/v1/nodes/n1"}))
	if n.Phase != "failed" || n.Message != "the kernel was never asked for" {
		t.Errorf("a failed machine: %s %q", n.Phase, n.Message)
	}
}

func TestANodeIsInThePhaseOfItsMachineUnlessItIsInUse(t *testing.T) {
	const silent, away, power = "silent", "the BMC does not answer", "its power is on, but not by an order of this site"
	tests := []struct {
		name          string
		agent         api.NodePhase
		record        api.MachineRecord
		phase         api.NodePhase
		message, says string
	}{
		{"just decided to boot", api.NodeDown, api.MachineRecord{Phase: api.MachineBooting, Power: api.PowerOff}, "booting", silent, ""},
		{"it boots and its agent has called", api.NodeReady, api.MachineRecord{Phase: api.MachineBooting, Power: api.PowerOn}, "booting", "", ""},
		{"its BMC is away", api.NodeDown, api.MachineRecord{Phase: api.MachineInspecting, Power: api.PowerUnknown, PowerMessage: away}, "inspecting", silent, away},
		{"in use", api.NodeReady, api.MachineRecord{Phase: api.MachineReady, Power: api.PowerOn}, "ready", "", ""},
		{"in use, its BMC is away", api.NodeReady, api.MachineRecord{Phase: api.MachineReady, PowerMessage: away}, "ready", "", away},
		{"dead", api.NodeDown, api.MachineRecord{Phase: api.MachineReady, Power: api.PowerOn}, api.NodeDown, silent, silent + "; if it hangs, boot it again: nearmetal node power cycle n1"},
		{"told to stop, its agent is still there", api.NodeReady, api.MachineRecord{Phase: api.MachineStopping, Power: api.PowerOn}, "stopping", "", ""},
		{"off", api.NodeDown, api.MachineRecord{Phase: api.MachineOff, Power: api.PowerOff}, "off", silent, ""},
		{"off, and somebody pressed its button", api.NodeDown, api.MachineRecord{Phase: api.MachineOff, Power: api.PowerOn}, "off", silent, power},
		{"never booted, runs an agent of its own", api.NodeReady, api.MachineRecord{Phase: api.MachineEnrolled, Power: api.PowerOn}, "ready", "", ""},
	}
	for _, tt := range tests {
		s := apiservertest.New(t, memory.New(), nil)
		s.Enroll("n1", 1)
		s.AddNode("n1", 4)
		s.SetMachine("n1", func(rec *api.MachineRecord) {
			rec.Phase, rec.Power, rec.PowerMessage = tt.record.Phase, tt.record.Power, tt.record.PowerMessage
		})
		s.Live.SetNode("n1", tt.agent, tt.message)
		n := answer[api.Node](t, send(t, s, request{method: "GET", path: "/v1/nodes/n1"}))
		if n.Phase != tt.phase || n.Message != tt.says {
			t.Errorf("%s: %s %q, want %s %q", tt.name, n.Phase, n.Message, tt.phase, tt.says)
		}
	}
}

func TestAMachineWhoseAgentAnswersIsOnThoughNobodyCanReadIt(t *testing.T) {
	for agent, want := range map[api.NodePhase]api.PowerState{api.NodeReady: api.PowerOn, api.NodeDown: api.PowerUnknown} {
		s := apiservertest.New(t, memory.New(), nil)
		s.Enroll("n1", 1)
		s.AddNode("n1", 4)
		s.SetMachine("n1", func(rec *api.MachineRecord) { rec.Phase, rec.Power = api.MachineReady, api.PowerUnknown })
		s.Live.SetNode("n1", agent, "")
		if n := answer[api.Node](t, send(t, s, request{method: "GET", path: "/v1/nodes/n1"})); n.Machine.Record.Power != want {
			t.Errorf("while its agent is %s: %s, want %s", agent, n.Machine.Record.Power, want)
		}
	}
}

func TestPowerOnAMachineInUseIsRefusedUntilForcedByName(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddImage("e", 0, api.StackMetal, api.StackContainer)
	s.AddImage("f", 0, api.StackMetal)
	s.Enroll("n1", 1)
	s.AddNode("n1", 4)
	s.SetMachine("n1", func(rec *api.MachineRecord) {
		rec.Phase, rec.Power = api.MachineReady, api.PowerOn
		rec.Boot = &api.Boot{Purpose: api.BootEnvironment, Environment: "e"}
	})
	create(t, s.Client(), "c1")
	s.Place("c1")
	s.MakeReady("c1")
	for path, body := range map[string]string{
		"/v1/nodes/n1/power":   `{"action": "off"}`,
		"/v1/power":            `{"action": "cycle", "selector": {"rack": "r1"}}`,
		"/v1/nodes/n1/inspect": "",
		"/v1/power?":           `{"action": "on", "environment": "f", "nodes": ["n1"]}`,
	} {
		p := problemOf(t, send(t, s, request{method: "POST", path: path, body: body}))
		if p.Code != "node_in_use" || !strings.Contains(p.Detail, "c1/c1-0") || !strings.Contains(p.Detail, "--force") {
			t.Errorf("%s %s: %s %s", path, body, p.Code, p.Detail)
		}
	}
	if p := problemOf(t, send(t, s, request{method: "DELETE", path: "/v1/nodes/n1"})); p.Code != "node_in_use" {
		t.Errorf("remove: %s %s", p.Code, p.Detail)
	}
	// What it runs already disturbs nobody.
	answer[api.Node](t, send(t, s, request{method: "POST", path: "/v1/nodes/n1/power", body: `{"action": "on", "environment": "e"}`}))
	s.SetMachine("n1", func(rec *api.MachineRecord) { rec.DoneRequest = 1 })
	n := answer[api.Node](t, send(t, s, request{method: "POST", path: "/v1/nodes/n1/power", body: `{"action": "off", "force": true}`}))
	if r := n.Machine.Request; r.Number != 2 || r.Action != api.PowerActionOff || !r.Force || r.By != "admin" {
		t.Errorf("the request: %+v", r)
	}
	if resp := send(t, s, request{method: "DELETE", path: "/v1/nodes/n1?force=true"}); resp.StatusCode != http.StatusNoContent {
		t.Errorf("forced removal: %s", resp.Status)
	}
	if s.Cache.View().Machine("n1").Intent.RemoveRequestedAt == nil {
		t.Error("the machine is not marked")
	}
}

// What a lost host's adapter still has of a member is removed by the host's agent, which needs the host to be on.
func TestAMachineThatIsOffIsPoweredOnThoughALostMemberIsToBeRemovedFromIt(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddImage("e", 0, api.StackMetal, api.StackContainer)
	s.Enroll("n1", 1)
	s.AddNode("n1", 4)
	create(t, s.Client(), "c1")
	s.Place("c1")
	s.MakeReady("c1")
	on := func() *http.Response {
		return send(t, s, request{method: "POST", path: "/v1/nodes/n1/power", body: `{"action": "on", "environment": "e"}`})
	}
	set := func(phase api.MachinePhase) { s.SetMachine("n1", func(rec *api.MachineRecord) { rec.Phase = phase }) }
	set(api.MachineOff)
	if p := problemOf(t, on()); p.Code != "node_in_use" {
		t.Errorf("with a member that it holds: %s %s", p.Code, p.Detail)
	}
	s.Release("c1")
	set(api.MachineReady)
	if p := problemOf(t, on()); p.Code != "node_in_use" {
		t.Errorf("with a member that is being removed, while it is on: %s %s", p.Code, p.Detail)
	}
	set(api.MachineOff)
	for path, method := range map[string]string{"/v1/nodes/n1": "DELETE", "/v1/nodes/n1/inspect": "POST"} {
		if p := problemOf(t, send(t, s, request{method: method, path: path})); p.Code != "node_in_use" {
			t.Errorf("%s %s: %s %s", method, path, p.Code, p.Detail)
		}
	}
	if n := answer[api.Node](t, on()); n.Machine.Request.Action != api.PowerActionOn {
		t.Errorf("the request: %+v", n.Machine.Request)
	}
}

func TestOfTwoPowerRequestsAtOnceOneIsTaken(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddImage("e", 0, api.StackMetal)
	s.Enroll("n1", 1)
	codes := make(chan string, 2)
	for _, body := range []string{`{"action": "on", "environment": "e"}`, `{"action": "off"}`} {
		go func() {
			resp := send(t, s, request{method: "POST", path: "/v1/nodes/n1/power", body: body})
			if resp.StatusCode == http.StatusOK {
				codes <- "ok"
				return
			}
			codes <- problemOf(t, resp).Code
		}()
	}
	got := []string{<-codes, <-codes}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"ok", "power_conflict"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestAnEnrolmentTokensSecretIsToldOnce(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	token := answer[api.EnrollmentToken](t, send(t, s, request{method: "POST", path: "/v1/enroll-tokens", body: `{"prefix": "rack1-", "uses": 40}`}))
	if p := problemOf(t, send(t, s, request{method: "POST", path: "/v1/enroll-tokens", body: `{"uses": -1}`})); len(p.Errors) != 2 {
		t.Errorf("a wrong one: %+v", p)
	}
	if token.Prefix != "rack1-" || token.Uses != 40 || token.Hash != nil {
		t.Errorf("the token: %+v", token)
	}
	secret, err := trust.ParseToken(token.Secret)
	if err != nil || secret.ID() != token.ID {
		t.Fatalf("the secret %q: %v", token.Secret, err)
	}
	stored := s.Cache.View().EnrollToken(token.ID)
	if !secret.Is(fmt.Sprintf("%x", stored.Hash)) {
		t.Error("the stored hash is not the secret's")
	}
	list := answer[api.List[api.EnrollmentToken]](t, send(t, s, request{method: "GET", path: "/v1/enroll-tokens"})).Items
	if len(list) != 1 || list[0].Secret != "" || list[0].Hash != nil {
		t.Errorf("the list: %+v", list)
	}
	if resp := send(t, s, request{method: "DELETE", path: "/v1/enroll-tokens/" + token.ID}); resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %s", resp.Status)
	}
}

func TestEnvironmentsTellWhereTheyRun(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("agent", 2)
	s.Enroll("n1", 1)
	digest := s.AddImage("e", 1<<30, api.StackMetal, api.StackContainer)
	s.AddImage("huge", 1<<40, api.StackMetal)
	all := answer[api.List[api.Environment]](t, send(t, s, request{method: "GET", path: "/v1/environments"})).Items
	var names []string
	for _, e := range all {
		names = append(names, e.Name)
	}
	if diff := cmp.Diff([]string{"e", "huge", "local"}, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	e := answer[api.Environment](t, send(t, s, request{method: "GET", path: "/v1/environments/e"}))
	if e.Image.Digest != digest || e.Recipe != "name: e\n" || e.Description != "Built e." {
		t.Errorf("the environment: %+v", e)
	}
	check := answer[api.EnvironmentCheck](t, send(t, s, request{method: "GET", path: "/v1/environments/huge/check"}))
	if len(check.Nodes) != 2 || check.Nodes[0].OK || check.Nodes[1].OK || !strings.Contains(check.Nodes[1].Problems[0], "needs 1099511627776 bytes") {
		t.Errorf("the check: %+v", check)
	}
	check = answer[api.EnvironmentCheck](t, send(t, s, request{method: "GET", path: "/v1/environments/e/check?node=n1"}))
	if len(check.Nodes) != 1 || !check.Nodes[0].OK || check.Nodes[0].Node != "n1" {
		t.Errorf("the check on n1: %+v", check)
	}
	if p := problemOf(t, send(t, s, request{method: "GET", path: "/v1/environments/e/check?node=nix"})); p.Code != "node_not_found" {
		t.Errorf("the check on a node that is not there: %s", p.Code)
	}
	// A cluster may ask for it although no node has fetched it.
	answer[api.Cluster](t, send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "c1", "environment": "e"}`}))
	if p := problemOf(t, send(t, s, request{method: "DELETE", path: "/v1/environments/e"})); !strings.Contains(p.Detail, "cluster c1") {
		t.Errorf("delete: %s", p.Detail)
	}
	if resp := send(t, s, request{method: "DELETE", path: "/v1/environments/huge"}); resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %s", resp.Status)
	}
}

func TestWhatMachinesAreLookedAtWithIsDeletedByForceOnly(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddImage("inspect", 1<<30, api.StackMetal)
	p := problemOf(t, send(t, s, request{method: "DELETE", path: "/v1/environments/inspect"}))
	if p.Code != "environment_in_use" || !strings.Contains(p.Detail, "no machine can be inspected") || !strings.Contains(p.Detail, "nearmetal env build inspect") {
		t.Errorf("delete: %s", p.Detail)
	}
	if resp := send(t, s, request{method: "DELETE", path: "/v1/environments/inspect?force=true"}); resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete by force: %s", resp.Status)
	}
}

func TestABuildIsStoredCancelledAndItsOutputRead(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	b := answer[api.Build](t, send(t, s, request{method: "POST", path: "/v1/builds", body: `{"shipped": "debian-mpi", "force": true}`}))
	if b.Environment != "debian-mpi" || b.Phase != api.BuildPending || !b.Force || b.By != "admin" || b.RecipeDigest == "" {
		t.Errorf("the build: %+v", b)
	}
	s.ChangeBuild(b.ID, func(b *api.Build) { b.Phase, b.Attempt = api.BuildRunning, 1 })
	s.Logs.Write("build."+b.ID+".1", "unpacking\n")
	logged := make(chan string)
	go func() {
		resp := send(t, s, request{method: "GET", path: "/v1/builds/" + b.ID + "/log?follow=true"})
		data, _ := io.ReadAll(resp.Body)
		logged <- string(data)
	}()
	s.Logs.Write("build."+b.ID+".1", "done\n")
	cancelled := answer[api.Build](t, send(t, s, request{method: "POST", path: "/v1/builds/" + b.ID + "/cancel"}))
	if !cancelled.CancelRequested {
		t.Errorf("the build: %+v", cancelled)
	}
	s.ChangeBuild(b.ID, func(b *api.Build) { b.Phase, b.LogBytes = api.BuildCancelled, 15 })
	if got := <-logged; got != "unpacking\ndone\n" {
		t.Errorf("the output: %q", got)
	}
	list := answer[api.List[api.Build]](t, send(t, s, request{method: "GET", path: "/v1/builds"})).Items
	if len(list) != 1 || list[0].Recipe != "" || list[0].Phase != api.BuildCancelled {
		t.Errorf("the list: %+v", list)
	}
	recipe := answer[api.Recipe](t, send(t, s, request{method: "GET", path: "/v1/recipes/debian-mpi"}))
	if recipe.Text != "name: debian-mpi\n" {
		t.Errorf("the recipe: %+v", recipe)
	}
}

func TestAgentsPutAndFetchContentByDigest(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	content := strings.Repeat("0123456789", 1000)
	path := "/agent/v1/images/" + image.DigestOf([]byte(content)).Hex()
	// Only a build has something to store: the disk is that of all that is decided.
	if resp := sendTCP(t, s, trust.RoleAgent, request{method: "PUT", path: path, body: content}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("put by a node that builds nothing: %s", resp.Status)
	}
	s.Build("b1", "agent-1")
	for _, want := range []int{http.StatusCreated, http.StatusOK} {
		if resp := sendTCP(t, s, trust.RoleAgent, request{method: "PUT", path: path, body: content}); resp.StatusCode != want {
			t.Errorf("put: %s, want %d", resp.Status, want)
		}
	}
	resp := sendTCP(t, s, trust.RoleAgent, request{method: "GET", path: path, header: map[string]string{"Range": "bytes=5-14"}})
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusPartialContent || string(data) != "5678901234" {
		t.Errorf("a range: %s %q %v", resp.Status, data, err)
	}
	resp = sendTCP(t, s, trust.RoleAgent, request{method: "HEAD", path: path})
	if resp.StatusCode != http.StatusOK || resp.ContentLength != int64(len(content)) {
		t.Errorf("head: %s, %d bytes", resp.Status, resp.ContentLength)
	}
	// Who is told that it is there does not send it again, and names it in an image: until then it must stay.
	if kept := s.Images.Kept(); len(kept) != 2 {
		t.Errorf("of a put and a head of what was there, %d keep it", len(kept))
	}
}

func TestTheEventsOfAMachineAreKeptForIt(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.Enroll("n1", 1)
	rev, err := s.Repo.AppendEvents(t.Context(), api.Event{Node: "n1", Reason: "PoweredOn", Message: "by redfish"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cache.WaitRevision(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	events := answer[api.List[api.Event]](t, send(t, s, request{method: "GET", path: "/v1/nodes/n1/events"})).Items
	if len(events) != 1 || events[0].Reason != "PoweredOn" {
		t.Errorf("events: %+v", events)
	}
}

func TestAMachineIsReachedInAnotherWayAndKeepsItsPasswordUntilItGetsAnother(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Provisioning = apiservertest.Provisioning(4) })
	enroll := func(method, path, address, password string) {
		t.Helper()
		r := send(t, s, request{method: method, path: path, body: fmt.Sprintf(
			`{"name": "n1", "spec": {"macs": ["52:54:00:00:00:01"], "power": {"kind": "ipmi", "address": %q, "user": "u"},
			"console": "", "firmware": "", "labels": {}}, "password": %q}`, address, password)})
		if r.StatusCode >= 300 {
			body, _ := io.ReadAll(r.Body)
			t.Fatalf("%s: %d %s", method, r.StatusCode, body)
		}
	}
	enroll("POST", "/v1/nodes", "10.9.1.1", "first")
	first := s.Cache.View().Machine("n1").Intent
	enroll("PUT", "/v1/nodes/n1", "10.9.1.2", "")
	moved := s.Cache.View().Machine("n1").Intent
	if moved.Spec.Power.Address != "10.9.1.2:623" || string(moved.Sealed) != string(first.Sealed) || len(first.Sealed) == 0 || moved.UID != first.UID {
		t.Errorf("moved to %+v", moved)
	}
	enroll("PUT", "/v1/nodes/n1", "10.9.1.2", "second")
	if next := s.Cache.View().Machine("n1").Intent; string(next.Sealed) == string(first.Sealed) {
		t.Error("the password is the old one")
	}
}

func TestWhatIsKnownOfABMCIsShownWithoutItsPasswords(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.Enroll("n1", 1)
	s.SetMachine("n1", func(rec *api.MachineRecord) {
		rec.Phase = api.MachineOff
		rec.BMC = &api.MachineBMC{
			Host: api.HostFixed, Sealed: []byte("sealed"), Next: []byte("next"), Replaces: []byte("sum"),
			Baseline: &api.BMCBaseline{Accounts: []api.BMCAccount{{ID: "2", Name: "operator"}}},
		}
	})
	b := answer[api.Node](t, send(t, s, request{method: "GET", path: "/v1/nodes/n1"})).Machine.Record.BMC
	if b == nil || b.Host != api.HostFixed || b.Baseline == nil || b.Sealed != nil || b.Next != nil || b.Replaces != nil {
		t.Errorf("an administrator is shown %+v", b)
	}
}
