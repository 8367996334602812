package manifest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func TestListsOfARequestHaveBounds(t *testing.T) {
	labels := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("k%d", i)] = "v"
		}
		return all
	}
	checks := func(n int) []api.Check {
		var all []api.Check
		for i := range n {
			all = append(all, api.Check{Name: fmt.Sprintf("c%d", i), Command: []string{"true"}})
		}
		return all
	}
	text := func(bytes int) []api.Check {
		half := bytes / 2
		return []api.Check{
			{Name: "a", Command: []string{strings.Repeat("x", half)}}, {Name: "b", Command: []string{"y", strings.Repeat("y", bytes-half-1)}},
		}
	}
	groups := func(n int) []api.Group {
		var all []api.Group
		for i := range n {
			all = append(all, api.Group{Name: fmt.Sprintf("g%d", i)})
		}
		return all
	}
	for _, tc := range []struct {
		name string
		req  api.ClusterRequest
		want string // empty: it is taken
	}{
		{"as many labels as there may be", api.ClusterRequest{Labels: labels(64)}, ""},
		{"one label too many", api.ClusterRequest{Labels: labels(65)}, "at most 64"},
		{"one entry of the selector too many", api.ClusterRequest{NodeSelector: labels(65)}, "at most 64"},
		{"as many checks as there may be", api.ClusterRequest{Checks: checks(32)}, ""},
		{"one check too many", api.ClusterRequest{Checks: checks(33)}, "at most 32"},
		{"as much text of checks as there may be", api.ClusterRequest{Checks: text(16 << 10)}, ""},
		{"checks with too much text", api.ClusterRequest{Checks: text(16<<10 + 1)}, "hold 16385 bytes of commands; at most 16384"},
		{"as many groups as there may be", api.ClusterRequest{Groups: groups(256)}, ""},
		{"one group too many", api.ClusterRequest{Groups: groups(257)}, "at most 256"},
		{"spares called like members of another group", api.ClusterRequest{Groups: []api.Group{{Name: "a", Spares: 1}, {Name: "a-spare"}}}, "give the group another name"},
	} {
		tc.req.Name = "c1"
		_, err := manifest.Normalize(tc.req, nil)
		invalid := new(manifest.Invalid)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v, want it taken", tc.name, err)
		case tc.want != "" && (!errors.As(err, &invalid) || len(invalid.Problems) != 1 || !strings.Contains(invalid.Problems[0].Message, tc.want)):
			t.Errorf("%s: %v, want one problem: %s", tc.name, err, tc.want)
		}
	}
}

func TestTheTextOfAJobHasABound(t *testing.T) {
	job := func(command, env, dir int) api.JobRequest {
		return api.JobRequest{
			Command: []string{"a", strings.Repeat("<", command-1)}, Env: map[string]string{"E": strings.Repeat("e", env-1)},
			Directory: "/" + strings.Repeat("d", dir-1),
		}
	}
	if err := manifest.CheckJob(job(40<<10, 16<<10, 8<<10), nil); err != nil {
		t.Errorf("as much as there may be: %v", err)
	}
	for name, req := range map[string]api.JobRequest{
		"command": job(40<<10+1, 16<<10, 8<<10), "environment": job(40<<10, 16<<10+1, 8<<10), "directory": job(40<<10, 16<<10, 8<<10+1),
	} {
		if err := manifest.CheckJob(req, nil); err == nil || !strings.Contains(err.Error(), "at most 65536 are possible") {
			t.Errorf("one byte more in the %s: %v, want it refused", name, err)
		}
	}
}
