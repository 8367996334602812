package cli_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// TestErrorsSayWhatWasWrongAndExitByTheirKind makes every exit code occur, and checks what is said and where.
func TestErrorsSayWhatWasWrongAndExitByTheirKind(t *testing.T) {
	s := newSite(t)
	sh := viaTCP(s)
	if r := sh.run(t, "cluster", "create", "taken", "--no-wait"); r.code != 0 {
		t.Fatal(r.err)
	}
	bad := s.Manifest("bad.yaml", "\nname: c9\nsise: 2\n")
	wrong := s.Manifest("wrong.json", "\n{\"name\": \"c9\",\n \"size\": 0}\n")
	exposed := filepath.Join(t.TempDir(), "token")
	text, err := os.ReadFile(s.TokenFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exposed, text, 0o644); err != nil {
		t.Fatal(err)
	}
	other := newSite(t)
	type testCase struct {
		name string
		sh   shell
		args string
		code int
		says []string
	}
	tests := []testCase{
		{"unknown command", sh, "clutser list", 2, []string{`no command "clutser"`, `did you mean "cluster"? See 'nearmetal --help'`}},
		{"unknown verb", sh, "cluster destroy c1", 2, []string{`no command "destroy"`}},
		{"noun alone", sh, "cluster", 2, []string{"needs one of: apply, condition, console, create, delete, events, explain, "}},
		{"unknown flag", sh, "cluster list --wide", 2, []string{"--wide", "--help"}},
		{"unknown format", sh, "cluster list -o xml", 2, []string{"table, json or yaml"}},
		{"no name", sh, "cluster show", 2, []string{"name the cluster"}},
		{"too many names", sh, "cluster show a b", 2, []string{`"b"`}},
		{"arguments where none belong", sh, "node list n1", 2, []string{`"n1"`}},
		{"empty selection", sh, "cluster delete", 2, []string{"nothing was deleted"}},
		{"empty name in the selection", sh, "cluster delete taken \"\"", 2, []string{"nothing was deleted"}},
		{"size 0", sh, "cluster create c9 --size 0", 2, []string{"--size: 0 is too small; give at least 1 member"}},
		{"negative size and bad name at once", sh, "cluster create C_9 --size -1", 2, []string{"2 problems", "NAME", `"c-9"`, "--size"}},
		{"bad memory", sh, "cluster create c9 --memory much", 2, []string{`--memory: "much" is not a size`}},
		{"unknown stack", sh, "cluster create c9 --stack contaner", 2, []string{"--stack", `did you mean "container"?`}},
		{"unknown environment", sh, "cluster create c9 --env debian", 2, []string{`environment "debian"`, `known environments: "local"`}},
		{"stack no node offers", sh, "cluster create c9 --stack vm", 2, []string{`stack "vm"`, "/dev/kvm"}},
		{"name and file", sh, "cluster create c9 -f x.yaml", 2, []string{"both a name"}},
		{"a network twice", sh, "cluster create c9 --network a --network B --network a", 2, []string{
			"2 problems", `--network: "B" is not a DNS label`, `--network: "a" is also networks[0]`,
		}},
		{"file and flag", sh, "cluster create --size 2 -f x.yaml", 2, []string{"--size can't be given together with a file"}},
		{"neither name nor file", sh, "cluster create", 2, []string{"-f FILE"}},
		{"no such file", sh, "cluster create -f /nonexistent/x.yaml", 2, []string{"there is no file /nonexistent/x.yaml"}},
		{"unknown field in a file", sh, "cluster create -f " + bad, 2, []string{"bad.yaml: line 2: sise", `"size"`}},
		{"wrong value in a file", sh, "cluster create -f " + wrong, 2, []string{"wrong.json: line 2: size: 0 is too small"}},
		{"bad label", sh, "cluster create c9 --label -x=1", 2, []string{"--label", "label key"}},
		{"bad address", shell{env: map[string]string{"NEARMETAL_ADDR": "somewhere"}}, "cluster list", 2, []string{"HOST:PORT"}},
		{"unencrypted address", shell{env: map[string]string{"NEARMETAL_ADDR": "http://h:1"}}, "cluster list", 2, []string{"not encrypted"}},
		{"job without a command", sh, "run taken -n 2", 2, []string{"command to run"}},
		{"job without a cluster", sh, "run", 2, []string{"name the cluster"}},
		{"no ranks", sh, "run taken -n 0 true", 2, []string{"-n is 0"}},
		{"no such cluster", sh, "cluster show nix", 3, []string{`cluster "nix" does not exist`, "cluster list"}},
		{"delete of what isn't there", sh, "cluster delete nix", 3, []string{`cluster "nix" does not exist`}},
		{"events of what isn't there", sh, "cluster events nix --follow", 3, []string{`cluster "nix" does not exist`}},
		{"no such job", sh, "job logs nix", 3, []string{`job "nix" does not exist`}},
		{"no such node", sh, "node show nix", 3, []string{`node "nix" does not exist`}},
		{"no such environment", sh, "env show nix", 3, []string{`environment "nix" does not exist`}},
		{"name taken", sh, "cluster create taken", 4, []string{`"taken" already exists`, "cluster delete taken"}},
		{"job on a cluster that isn't ready", sh, "run taken true", 4, []string{"pending", "0 of 1 members"}},
		{"no server at the socket", shell{env: map[string]string{"NEARMETAL_STATE": t.TempDir()}}, "cluster list", 6, []string{"nearmetal dev"}},
		{
			"no server at the port",
			shell{env: map[string]string{"NEARMETAL_ADDR": "127.0.0.1:1", "NEARMETAL_TOKEN_FILE": s.TokenFile()}},
			"cluster list", 6,
			[]string{"127.0.0.1:1", "is it running there?"},
		},
		{"no token", shell{env: map[string]string{"NEARMETAL_ADDR": s.Addr, "NEARMETAL_STATE": t.TempDir()}}, "cluster list", 7, []string{"NEARMETAL_TOKEN_FILE"}},
		{"token others can read", shell{env: map[string]string{"NEARMETAL_ADDR": s.Addr, "NEARMETAL_TOKEN_FILE": exposed}}, "cluster list", 7, []string{"chmod 600"}},
		{
			"token of another site",
			shell{env: map[string]string{"NEARMETAL_ADDR": s.Addr, "NEARMETAL_TOKEN_FILE": other.TokenFile()}},
			"cluster list", 7,
			[]string{"the token is for another server"},
		},
	}
	member := filepath.Join(t.TempDir(), "member")
	if err := os.WriteFile(member, []byte(s.Token("ann", "default", api.RoleMember)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	local := map[string]string{"NEARMETAL_STATE": s.Dir, "NEARMETAL_TOKEN_FILE": member}
	tests = append(tests, []testCase{
		{"a token is who it says over the socket too", shell{env: local}, "node drain n1", 7, []string{`"ann"`, "role member"}},
		{"a flag that only the server can judge", sh, "cluster scale taken --remove taken-7", 2, []string{`Error: --remove: "taken-7" is not a member`}},
	}...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := strings.Fields(tt.args)
			for i := range args {
				if args[i] == `""` {
					args[i] = ""
				}
			}
			r := tt.sh.run(t, args...)
			if r.code != tt.code || !strings.HasPrefix(r.err, "Error: ") || r.out != "" {
				t.Errorf("exit code %d, want %d\nstandard output: %s\nstandard error: %s", r.code, tt.code, r.out, r.err)
			}
			for _, say := range tt.says {
				if !strings.Contains(r.err, say) {
					t.Errorf("the error does not say %q: %s", say, r.err)
				}
			}
		})
	}
}

func TestARefusedClusterEndsTheWaitWithItsReasonAndGivesItsNameBack(t *testing.T) {
	s := newSite(t)
	reason := `group "c1" needs 9 members with 1 core each; 2 nodes have 4 free`
	r := viaSocket(s).during(t, func() {
		s.SetPhase("c1", api.ClusterRefused, reason)
		s.AwaitDelete("c1")
		s.Forget("c1")
	}, "cluster", "create", "c1", "--size", "9")
	if r.code != cli.ExitRefused || !strings.Contains(r.err, reason) || strings.Contains(r.err, "cluster delete") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if c := s.Cache.Cluster("c1"); c != nil {
		t.Error("the refused cluster still has the name")
	}
}

func TestAFailedClusterEndsTheWait(t *testing.T) {
	s := newSite(t)
	r := viaSocket(s).during(t, func() { s.Place("c1"); s.SetPhase("c1", api.ClusterFailed, "c1-0: no OCI runtime") }, "cluster", "create", "c1")
	if r.code != cli.ExitFailed || !strings.Contains(r.err, "no OCI runtime") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}

func TestAClusterDeletedWhileWaitedForEndsTheWait(t *testing.T) {
	s := newSite(t)
	r := viaTCP(s).during(t, func() {
		s.Place("c1")
		if _, err := s.LocalClient().DeleteCluster(context.Background(), "c1"); err != nil {
			t.Error(err)
		}
	}, "cluster", "create", "c1")
	if r.code != cli.ExitConflict || !strings.Contains(r.err, "was deleted before it was ready") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}

func TestWaitingIsBoundedAndToldInPlainLines(t *testing.T) {
	s := newSite(t)
	r := viaTCP(s).during(t, func() { s.Place("c1") }, "cluster", "create", "c1", "--size", "2", "--timeout", "500ms")
	if r.code != cli.ExitFailed || !strings.Contains(r.err, "not ready after 500ms: starting, 0/2 members ready") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if line := "0.0s  cluster c1: starting, 0/2 members ready\n"; !strings.Contains(r.err, line) {
		t.Errorf("progress lacks %q:\n%s", line, r.err)
	}
	if strings.Contains(r.err, "\r") {
		t.Errorf("progress without a terminal is drawn in place: %q", r.err)
	}
}

func TestCtrlCEndsAWaitButNotTheCluster(t *testing.T) {
	s := newSite(t)
	sh := viaTCP(s)
	interrupts := make(chan os.Signal, 2)
	sh.interrupts = interrupts
	r := sh.during(t, func() { s.Place("c1"); interrupts <- syscall.SIGINT }, "cluster", "create", "c1")
	// The interrupt may come before the answer to the create; both messages tell where to look.
	if r.code != cli.ExitInterrupted || !strings.Contains(r.err, "nearmetal cluster show c1") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if r := viaTCP(s).run(t, "cluster", "show", "c1"); r.code != 0 {
		t.Errorf("the cluster is gone: %s", r.err)
	}
}

func TestSomeOfSeveralDeletesMayFail(t *testing.T) {
	s := newSite(t)
	sh := viaTCP(s)
	for _, name := range []string{"c1", "c2"} {
		if r := sh.run(t, "cluster", "create", name, "--no-wait"); r.code != 0 {
			t.Fatal(r.err)
		}
	}
	r := sh.run(t, "cluster", "delete", "c1", "nix", "c2", "c1", "--no-wait")
	if r.code != cli.ExitNotFound || r.out != "cluster c1 is being deleted\ncluster c2 is being deleted\n" {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
}

func TestTheLongRunningCommandsGetTheirOptions(t *testing.T) {
	var dev config.Dev
	var agent config.Agent
	sh := shell{env: map[string]string{"NEARMETAL_STATE": "/tmp/elsewhere"}, commands: cli.Commands{
		Dev:   func(_ context.Context, o config.Dev) error { dev = o; return nil },
		Agent: func(_ context.Context, o config.Agent) error { agent = o; return errors.New("port in use") },
	}}
	if r := sh.run(t, "dev", "--nodes", "3", "--node-cores", "2", "--listen", "127.0.0.1:0"); r.code != 0 {
		t.Fatal(r.err)
	}
	if dev.StateDir != "/tmp/elsewhere" || dev.Nodes != 3 || dev.NodeCores != 2 || dev.Listen != "127.0.0.1:0" || dev.Log.Level != "info" {
		t.Errorf("dev got %+v", dev)
	}
	r := sh.run(t, "agent", "--state", "/s", "--server", "h:7700", "--label", "rack=r1", "--name", "n1", "--cores", "8", "--huge-pages", "2/3", "--enroll-token-file", "/t", "--volume-pool-lvm", "vg0/volumes")
	if r.code != cli.ExitFailed || r.err != "Error: port in use\n" {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if agent.StateDir != "/s" || agent.EnrollTokenFile != "/t" || agent.Labels["rack"] != "r1" || agent.Cores != 8 || agent.HugePages != (inventory.Part{N: 2, Of: 3}) {
		t.Errorf("agent got %+v", agent)
	}
	if agent.VolumeGroup != "vg0" || agent.VolumeThinPool != "volumes" {
		t.Errorf("agent got %+v", agent)
	}
	for args, say := range map[string]string{
		"dev --nodes 0": "at least 1 node", "dev --listen nowhere": "HOST:PORT", "server --log-level loud": "debug, info, warn or error",
		"agent --name N_1": "DNS label", "agent --fabric ib1": "CELL=ADAPTER", "agent --fabric ib1=../x": "neither a PCI address",
		"agent --fabric a=eth1 --fabric b=eth1": "twice", "agent --virtual-functions eth1=7": "--fabric CELL=eth1",
		"agent --fabric a=eth1 --virtual-functions eth1=x": "ADAPTER=N", "agent --fabric a=eth1 --virtual-ports b": "no --fabric names that cell",
		"agent --huge-pages 3/2": "all, none, or a part such as 2/3", "agent --server h": "HOST:PORT",
		"agent --volume-pool-lvm volumes": "GROUP/POOL", "agent --volume-pool-lvm vg0/-x": "GROUP/POOL", "agent --volume-pool-lvm a/b/c": "GROUP/POOL",
		"agent --volume-pool-lvm a/b --volume-pool-size 1GiB": "conflicts with --volume-pool-size", "agent --volume-pool-lvm a/b --volume-pool-sparse": "conflicts with",
		"demo": "no \"demo\" command", "demo --pairs 1": "at least 2",
	} {
		if r := sh.run(t, strings.Fields(args)...); r.code != cli.ExitUsage || !strings.Contains(r.err, say) {
			t.Errorf("%s: exit code %d: %s", args, r.code, r.err)
		}
	}
}
