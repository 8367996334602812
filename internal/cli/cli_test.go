package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// newSite starts a site with two nodes whose clock stands still.
func newSite(t *testing.T) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return t0 } })
	s.AddNode("n1", 2)
	s.AddNode("n2", 2)
	return s
}

// viaTCP and viaSocket are the two ways to a site.
func viaTCP(s *apiservertest.Site) shell {
	return shell{env: map[string]string{"NEARMETAL_ADDR": "https://" + s.Addr, "NEARMETAL_TOKEN_FILE": s.TokenFile()}}
}

func viaSocket(s *apiservertest.Site) shell {
	return shell{env: map[string]string{"NEARMETAL_STATE": s.Dir}}
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
