package manifest_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

var update = flag.Bool("update", false, "write the expected results instead of comparing")

// TestFiles reads every testdata/NAME.good.* and NAME.bad.*: the normal form, or the message, stands in NAME...want.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".want") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			format := manifest.YAML
			if filepath.Ext(file) == ".json" {
				format = manifest.JSON
			}
			good := strings.Contains(file, ".good.")
			got, err := read(data, format)
			if (err == nil) != good {
				t.Fatalf("read %s: error %v, but the file's name says otherwise", file, err)
			}
			if err != nil {
				got = err.Error() + "\n"
			}
			golden(t, file+".want", got)
		})
	}
}

// read decodes and normalizes, and returns the normal form as JSON.
func read(data []byte, format manifest.Format) (string, error) {
	req, src, err := manifest.DecodeCluster(data, format)
	if err != nil {
		return "", err
	}
	c, err := manifest.Normalize(req, src)
	if err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(c, "", "  ")
	return string(text) + "\n", err
}

func golden(t *testing.T, file, got string) {
	t.Helper()
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
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestEveryErrorIsInvalidAndSaysWhereOrWhat(t *testing.T) {
	for _, text := range []string{"", "a: [", "sizze: 1", "name: UPPER"} {
		_, err := read([]byte(text), manifest.YAML)
		var invalid *manifest.Invalid
		if !errors.As(err, &invalid) {
			t.Errorf("read(%q) = %v, want an *Invalid", text, err)
			continue
		}
		for _, p := range invalid.Problems {
			if p.Message == "" || (p.Location == "" && !invalid.Malformed) {
				t.Errorf("read(%q): problem %+v lacks a message or a location", text, p)
			}
		}
	}
}

func TestAbsentIsDefaultAndZeroIsWrong(t *testing.T) {
	c, err := manifest.Normalize(api.ClusterRequest{Name: "c1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := api.Group{
		Name: "c1", Size: 1, Shape: api.Shape{Cores: 1, Memory: 512 << 20}, Stack: api.StackContainer, Environment: "local",
	}
	if diff := cmp.Diff(want, c.Spec.Groups[0]); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	_, err = manifest.Normalize(api.ClusterRequest{Name: "c1"}, manifest.Flags("size", "cores", "memory", "stack", "environment"))
	var invalid *manifest.Invalid
	if !errors.As(err, &invalid) || len(invalid.Problems) != 5 {
		t.Errorf("given zeros: %v, want five problems", err)
	}
}

func TestNormalFormIsAFixedPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := api.ClusterRequest{Name: rapid.StringMatching(`[a-z][a-z0-9]{0,10}`).Draw(t, "name")}
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z](-?[a-z0-9]){0,4}`), 1, 5, rapid.ID).Draw(t, "groups")
		for _, name := range names {
			req.Groups = append(req.Groups, api.Group{Name: name, Size: rapid.IntRange(1, 12).Draw(t, "size")})
			if rapid.Bool().Draw(t, "checked") {
				req.Groups[len(req.Groups)-1].Checks = []api.Check{{Name: "a", Command: []string{"x"}}}
			}
		}
		req.TimeLimit = api.Duration(rapid.Int64Range(0, 9).Draw(t, "limit")) * api.Duration(time.Hour)
		c, err := manifest.Normalize(req, nil)
		if err != nil {
			t.Fatalf("Normalize(%+v): %v", req, err)
		}
		again, err := manifest.Normalize(api.ClusterRequest{Name: c.Name, Groups: c.Spec.Groups, TimeLimit: c.Spec.TimeLimit}, nil)
		if err != nil || cmp.Diff(c.Spec, again.Spec) != "" {
			t.Fatalf("Normalize of the normal form: %v\n%s", err, cmp.Diff(c.Spec, again.Spec))
		}
		members := map[string]bool{}
		for _, g := range c.Spec.Groups {
			for i := range g.Size {
				name := manifest.MemberName(g.Name, i)
				if members[name] {
					t.Fatalf("two members are called %q in groups %v", name, names)
				}
				members[name] = true
				if problem := manifest.LabelProblem(name, manifest.MaxLabel); problem != "" {
					t.Fatalf("member name %q %s", name, problem)
				}
			}
		}
	})
}

func TestLongestNamesLeaveRoomForMembers(t *testing.T) {
	name := strings.Repeat("a", manifest.MaxClusterName)
	c, err := manifest.Normalize(api.ClusterRequest{Name: name, Size: manifest.MaxMembers}, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := manifest.MemberName(c.Spec.Groups[0].Name, manifest.MaxMembers-1)
	if problem := manifest.LabelProblem(last, manifest.MaxLabel); problem != "" {
		t.Errorf("last member %q %s", last, problem)
	}
}

func TestHostileTextIsRefusedQuickly(t *testing.T) {
	hostile := map[string]string{
		"open brackets":   strings.Repeat("[", 1<<19),
		"open braces":     strings.Repeat("{a: ", 1<<18),
		"block nesting":   strings.Repeat("- ", 1<<18) + "x",
		"indented blocks": deepBlocks(2000),
		"too long":        "name: " + strings.Repeat("a", 1<<20),
		"quotes":          strings.Repeat("\"", 1<<16),
		"empty lines":     strings.Repeat("\n", 1<<20-1),
		"colons":          strings.Repeat("a: ", 1<<16),
	}
	for name, text := range hostile {
		for _, format := range []manifest.Format{manifest.YAML, manifest.JSON} {
			start := time.Now()
			if _, err := read([]byte(text), format); err == nil {
				t.Errorf("%s as %s was accepted", name, format)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("%s as %s took %v", name, format, d)
			}
		}
	}
}

func deepBlocks(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestJobsAreCheckedAtOnce(t *testing.T) {
	_, err := manifest.DecodeJob([]byte(`{"command": [""], "ranks": -1, "env": {"A B": "x"}, "directory": "tmp"}`), manifest.JSON)
	var invalid *manifest.Invalid
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 {
		t.Fatalf("DecodeJob = %v, want four problems", err)
	}
	if _, err := manifest.DecodeJob([]byte(`{"command": ["hostname", "-f"], "ranks": 4}`), manifest.JSON); err != nil {
		t.Errorf("a good job: %v", err)
	}
	if _, err := manifest.DecodeJob([]byte(`{"command": "hostname"}`), manifest.JSON); err == nil {
		t.Error("a command that is no list was accepted")
	}
}

func TestASpareIsNeverCalledLikeAMember(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stem := rapid.SampledFrom([]string{"a", "a-spare", "a-spare-spare", "b"})
		req := api.ClusterRequest{Name: "c1"}
		for _, name := range rapid.SliceOfNDistinct(stem, 1, 4, rapid.ID).Draw(t, "groups") {
			req.Groups = append(req.Groups, api.Group{Name: name, Size: 2, Spares: rapid.IntRange(0, 2).Draw(t, "spares")})
		}
		c, err := manifest.Normalize(req, nil)
		if err != nil {
			return
		}
		taken := map[string]bool{}
		for _, g := range c.Spec.Groups {
			for i := range g.Size + g.Spares {
				name := manifest.MemberName(g.Name, i)
				if i >= g.Size {
					name = manifest.SpareName(g.Name, i-g.Size)
				}
				if taken[name] {
					t.Fatalf("two are called %q in %+v", name, req.Groups)
				}
				taken[name] = true
			}
		}
	})
}

func TestAFailureSignalIsOneThatAJobCanBeSent(t *testing.T) {
	for text, want := range map[string]string{
		`"URG"`: "", `"USR1"`: "", `"KILL"`: "", `""`: "is not a signal", `"SIGUSR1"`: `did you mean "USR1"?`, `"usr2"`: `did you mean "USR2"?`,
		`"SEGV"`: "use one of ABRT", `"STOP"`: "use one of", `10`: "has to be text",
	} {
		req, err := manifest.DecodeJob([]byte(`{"command": ["x"], "requeue": true, "failure_signal": `+text+`}`), manifest.JSON)
		switch {
		case want == "" && (err != nil || !req.Requeue || `"`+req.FailureSignal+`"` != text):
			t.Errorf("failure_signal %s: %+v, %v; want it accepted", text, req, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("failure_signal %s: %v, want %q", text, err, want)
		}
	}
}

func TestAnyRequestIsReadStrictlyTimesToo(t *testing.T) {
	type body struct {
		api.Project
		Used api.Quota `json:"used"`
	}
	got, _, err := manifest.Decode[body]([]byte(`{"name": "p", "quota": {"cores": 3, "memory": "1GiB"}, "created_at": "2026-01-31T08:00:00Z", "used": {}}`),
		manifest.JSON)
	if err != nil || got.Quota.Memory != 1<<30 || got.CreatedAt.Month() != time.January {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, _, err := manifest.Decode[body]([]byte("quota:\n  core: 1\ncreated_at: soon\n"), manifest.YAML); err == nil ||
		!strings.Contains(err.Error(), `line 2: quota.core: is not a field; did you mean "cores"?`) || !strings.Contains(err.Error(), "line 3: created_at") {
		t.Errorf("bad fields: %v", err)
	}
}
