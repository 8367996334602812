package cli_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestACheckOfANetworkFailsWhenSomethingIsWrong(t *testing.T) {
	f := newFake(t)
	check := api.NetworkCheck{Findings: []api.NetworkFinding{}}
	f.fixed("GET /v1/networks/{name}/check", &check)
	has(t, f.shell().run(t, "network", "check", "project/lab"), 0, "there is nothing to check")
	check.Findings = append(check.Findings, api.NetworkFinding{Node: "n1", Check: "hears n2", OK: true, Detail: "packets of 1500 bytes"})
	has(t, f.shell().run(t, "network", "check", "project/lab"), 0, "n1    hears n2  ok      packets of 1500 bytes\n")
	check.Findings = append(check.Findings, api.NetworkFinding{Node: "n2", Check: "in force", Detail: "bridge nmbr1 mtu: want 1450, got 1400"})
	has(t, f.shell().run(t, "network", "check", "project/lab"), cli.ExitFailed, "n2    in force  wrong   bridge nmbr1 mtu: want 1450, got 1400\n")
	has(t, f.shell().run(t, "network", "check", "project/lab", "-o", "json"), cli.ExitFailed, `"detail": "bridge nmbr1 mtu: want 1450, got 1400"`)
}

func TestATraceShowsItsHopsAndFailsWhenThePacketDoes(t *testing.T) {
	f := newFake(t)
	hop := func(node, place string, passes bool, detail string) api.TraceHop {
		return api.TraceHop{Node: node, Place: place, Passes: passes, Detail: detail}
	}
	trace := api.NetworkTrace{
		From: "one/one-0", To: "two/two-0", Packet: "tcp 22", Passes: true, Answered: true,
		Request: []api.TraceHop{hop("n1", "bridge", true, "two/two-0 is on node n2")}, Reply: []api.TraceHop{hop("n2", "bridge", true, "one/one-0 is on node n1")},
	}
	f.fixed("GET /v1/networks/{name}/trace", &trace)
	run := func(code int, want ...string) {
		t.Helper()
		has(t, f.shell().run(t, "network", "check", "lab", "--from", "one/one-0", "--to", "two/two-0", "--protocol", "tcp", "--port", "22"), code, want...)
	}
	run(0, "1         n1    bridge  passes  two/two-0 is on node n2\n", "answer 1  n2    bridge  passes", "tcp 22 from one/one-0 to two/two-0 passes, and so does the answer\n")
	trace.Answered, trace.Reply[0].Passes, trace.Reply[0].Detail = false, false, "one/one-0 is unknown"
	run(cli.ExitFailed, "passes, but the answer is stopped at its hop 1 (n2, bridge)\n")
	trace.Reply = nil
	run(0, "two/two-0 passes\n")
	trace.Passes, trace.Request[0].Passes, trace.Request[0].Detail = false, false, "no rule allows tcp 22"
	run(cli.ExitFailed, "1    n1    bridge  stops   no rule allows tcp 22\n", "is stopped at hop 1 (n1, bridge)\n")
}

func TestATraceWithoutItsPacketIsAUsageError(t *testing.T) {
	f := newFake(t)
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"needs both ends", []string{"--from", "one/one-0"}},
		{"needs both ends", []string{"--to", "one/one-0"}},
		{"needs both ends", []string{"--port", "22"}},
		{`"sctp" is not known`, []string{"--from", "one/one-0", "--to", "two/two-0", "--protocol", "sctp"}},
		{"--protocol tcp needs --port", []string{"--from", "one/one-0", "--to", "two/two-0", "--protocol", "tcp"}},
		{"--protocol udp needs --port", []string{"--from", "one/one-0", "--to", "two/two-0", "--protocol", "udp", "--port", "70000"}},
	} {
		has(t, f.shell().run(t, append([]string{"network", "check", "lab"}, tt.args...)...), cli.ExitUsage, tt.want)
	}
}
