package measure

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestWhatCarriedTheMessagesIsReadFromWhatMPISays(t *testing.T) {
	for name, c := range map[string]struct{ said, want string }{
		"Open MPI over TCP by three addresses": {"[vm:1] mca: bml: Using self btl for send to [[1,1],0] on node vm\n" +
			"[vm:1] mca: bml: Using tcp btl for send to [[1,1],1] on node vm\n[vm:1] mca: bml: Using tcp btl for send to [[1,1],1] on node vm\n", "TCP (tcp)"},
		"Open MPI through memory": {"{\"bytes\":8}\n[vm:1] mca: bml: Using vader btl for send to [[1,1],1] on node vm\n", "shared memory (vader)"},
		"UCX 1.13 through memory": {"[1.2] [vm:1:0] ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: tag(self/memory0 cma/memory)\n" +
			"[1.2] [vm:1:0] ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: tag(posix/memory cma/memory)\n", "shared memory (cma, posix)"},
		"UCX 1.13 over TCP":   {"UCX  INFO    ep_cfg[0]: tag(self/memory0 tcp/eth0)\nUCX  INFO    ep_cfg[1]: tag(tcp/eth0 tcp/eth1)\n", "TCP (tcp)"},
		"UCX 1.15":            {"UCX  INFO  0x55 self cfg#0 tag(self/memory cma/memory)\nUCX  INFO  0x55 intra-node cfg#1 tag(sysv/memory cma/memory)\n", "shared memory (cma, sysv)"},
		"UCX over InfiniBand": {"UCX  INFO  0x55 inter-node cfg#2 tag(rc_mlx5/mlx5_0:1)\n", "rc_mlx5 (rc_mlx5)"},
		"two ways":            {"mca: bml: Using tcp btl for send to x\nmca: bml: Using vader btl for send to y\n", "TCP and shared memory (tcp, vader)"},
		"only to itself":      {"mca: bml: Using self btl for send to x\n", "not known"},
		"nothing":             {"Hello\n", "not known"},
	} {
		if got := FindCarrier([]byte(c.said)).String(); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestMPIOnThisMachineSaysWhatCarriedItsMessages(t *testing.T) {
	needs.Program(t, "mpirun")
	dir := t.TempDir()
	programs, err := BuildPrograms(t.Context(), dir)
	if errors.Is(err, ErrNoCompiler) {
		needs.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for transport, want := range map[Transport]CarrierKind{TransportTCP: CarriedByTCP, TransportSharedMemory: CarriedByMemory} {
		out, err := HostCommand(t.Context(), []int{0, 0}, transport, dir, programs.PingPong, "1", "8").CombinedOutput()
		if got := FindCarrier(out); err != nil || got.Kind != want {
			t.Errorf("%s: got %s, %v, want %s; it said:\n%s", transport, got, err, want, out)
		}
	}
}

func TestSidesThatWereCarriedDifferentlyAreNotJudged(t *testing.T) {
	e := pingPong(7, 6)
	memory, tcp := &Carrier{Kind: CarriedByMemory, By: []string{"vader"}}, &Carrier{Kind: CarriedByTCP, By: []string{"tcp"}}
	for i := range e.Runs {
		e.Runs[i].CarriedBy = tcp
		if e.Runs[i].Side == "shared memory" { // a reference, compared with nothing
			e.Runs[i].CarriedBy = memory
		}
	}
	if a, err := Analyze(e, 0); err != nil || a.Unlike != "" || a.Decisions[0].Verdict != Below {
		t.Fatalf("both sides over TCP: unlike %q, %+v, %v", a.Unlike, a.Decisions, err)
	}
	for i, r := range e.Runs {
		if r.Side == "host" && r.Pair == 4 {
			e.Runs[i].CarriedBy = memory
		}
	}
	report, err := NewReport(e, 0)
	if err != nil {
		t.Fatal(err)
	}
	if d := report.Analysis.Decisions[0]; d.Verdict != Undecided || d.PairsToDecide != 0 {
		t.Errorf("a goal is judged by unlike sides: %+v", d)
	}
	var text, page bytes.Buffer
	if err := errors.Join(report.WriteText(&text), WriteHTML(&page, "t", time.Unix(0, 0), report)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), page.String()} {
		for _, must := range []string{"in pair 5 the messages of host went by shared memory (vader), those of cluster by TCP (tcp)", "goal 0.99 not judged", "in other runs shared memory (vader)"} {
			if !strings.Contains(out, must) {
				t.Errorf("the output lacks %q:\n%s", must, out)
			}
		}
	}
}
