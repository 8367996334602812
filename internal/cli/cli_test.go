package cli_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

var update = flag.Bool("update", false, "write the expected output instead of comparing")

// t0 is when everything happens in these tests; the command line runs 90 s later.
var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newSite starts a site with two nodes whose clock stands still.
func newSite(t *testing.T) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return t0 } })
	s.AddNode("n1", 2)
	s.AddNode("n2", 2)
	return s
}

// safeBuffer may be written and read at once.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// shell runs the command line as a shell with an environment would.
type shell struct {
	env        map[string]string
	in         io.Reader
	interrupts chan os.Signal
	commands   cli.Commands
}

// viaTCP and viaSocket are the two ways to a site.
func viaTCP(s *apiservertest.Site) shell {
	return shell{env: map[string]string{"NEARMETAL_ADDR": "https://" + s.Addr, "NEARMETAL_TOKEN_FILE": s.TokenFile(trust.RoleUser)}}
}

func viaSocket(s *apiservertest.Site) shell {
	return shell{env: map[string]string{"NEARMETAL_STATE": s.Dir}}
}

// result is what a run left.
type result struct {
	code     int
	out, err string
}

func (sh shell) run(t *testing.T, args ...string) result {
	t.Helper()
	var out, errs safeBuffer
	in := sh.in
	if in == nil {
		in = strings.NewReader("")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	code := cli.Run(ctx, cli.Invocation{
		Args: args, Streams: config.Streams{In: in, Out: &out, Err: &errs}, Getenv: func(k string) string { return sh.env[k] },
		Interrupts: sh.interrupts, Now: func() time.Time { return t0.Add(90 * time.Second) }, Commands: sh.commands,
	})
	return result{code, out.String(), errs.String()}
}

// during runs the command line while something else happens.
func (sh shell) during(t *testing.T, meanwhile func(), args ...string) result {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(meanwhile)
	r := sh.run(t, args...)
	wg.Wait()
	return r
}

var uids = regexp.MustCompile(`("?uid"?: )"?[a-z2-7]{12}"?`)

// fixed replaces what is random.
func fixed(text string, job string) string {
	text = uids.ReplaceAllString(text, "${1}UID")
	if job != "" {
		text = strings.ReplaceAll(text, job, "JOBID23456")
	}
	return text
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// TestATour walks through everything that prints, over both ways to the server, and compares with golden output.
func TestATour(t *testing.T) {
	for name, way := range map[string]func(*apiservertest.Site) shell{"tcp": viaTCP, "socket": viaSocket} {
		t.Run(name, func(t *testing.T) { tour(t, newSite(t), way) })
	}
}

func tour(t *testing.T, s *apiservertest.Site, way func(*apiservertest.Site) shell) {
	sh := way(s)
	var script strings.Builder
	job := ""
	show := func(r result, args ...string) {
		t.Helper()
		if r.code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, r.code, r.err)
		}
		script.WriteString("$ nearmetal " + fixed(strings.Join(args, " "), job) + "\n" + fixed(r.out, job) + "\n")
	}
	step := func(args ...string) { t.Helper(); show(sh.run(t, args...), args...) }

	step("cluster", "list")
	create := []string{"cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "512MiB", "--label", "team=fluids"}
	show(sh.during(t, func() { s.Place("c1"); s.MakeReady("c1") }, create...), create...)
	for _, format := range []string{"table", "json", "yaml"} {
		for _, command := range [][]string{
			{"cluster", "list"},
			{"cluster", "show", "c1"},
			{"node", "list"},
			{"node", "show", "n1"},
			{"env", "list"},
			{"env", "show", "local"},
			{"cluster", "events", "c1"},
		} {
			step(append(command, "-o", format)...)
		}
	}
	run := []string{"run", "c1", "-n", "2", "--", "./hello", "-v", "a b"}
	show(sh.during(t, func() {
		j := s.AwaitJob(func(j api.Job) bool { return true })
		job = j.ID
		s.Logs.Write(j.ID, "hello from rank 0\nhello from rank 1\n")
		s.EndJob(j.ID, api.JobSucceeded, 0, "")
	}, run...), run...)
	for _, format := range []string{"table", "json", "yaml"} {
		step("job", "list", "-o", format)
		step("job", "show", job, "-o", format)
	}
	step("job", "logs", job)
	step("job", "cancel", job)
	file := s.Manifest("c2.yaml", "\nname: c2\ngroups:\n- {name: head}\n- {name: compute, size: 2, node_selector: {rack: r1}}\n")
	r := sh.run(t, "cluster", "create", "-f", file, "--no-wait", "-o", "yaml")
	show(r, "cluster", "create", "-f", "c2.yaml", "--no-wait", "-o", "yaml")
	s.SetPhase("c2", api.ClusterRefused, "group \"compute\" needs 2 members with 1 core each; 0 nodes have them free")
	step("cluster", "list")
	show(sh.during(t, func() {
		for _, name := range []string{"c1", "c2"} {
			s.AwaitDelete(name)
			s.Release(name)
			s.Forget(name)
		}
	}, "cluster", "delete", "c1", "c2"), "cluster", "delete", "c1", "c2")
	step("cluster", "list", "-o", "json")
	golden(t, "tour", script.String())
}

func TestTheDocumentationIsFresh(t *testing.T) {
	const page = "../../docs/cli.md"
	got := cli.Page()
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/cli.md is stale; run: go test ./internal/cli -run Documentation -update\n%s", diff)
	}
}
