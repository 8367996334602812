package gpu

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func threeGPUs() Found {
	found := Found{sources: map[string]source{}}
	for _, g := range []api.NodeGPU{
		{ID: "GPU-a", PCI: "0000:3b:00.0", Model: "NVIDIA H200"}, {ID: "GPU-b", PCI: "0000:5e:00.0", Model: "NVIDIA A100-SXM4-80GB"}, {ID: "example.com/gpu=gpu0"},
	} {
		found.GPUs = append(found.GPUs, g)
		found.sources[g.ID] = func() (*Edits, error) { return &Edits{}, nil }
	}
	return found
}

func offered(f Found) (ids []string) {
	for _, d := range f.Devices() {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestMembersGetOnlyGPUsOfTheOperatorsList(t *testing.T) {
	for name, c := range map[string]struct {
		allowed []string
		want    string
	}{
		"no list":              {nil, "GPU-a GPU-b example.com/gpu=gpu0"},
		"a model":              {[]string{"h200"}, "GPU-a"},
		"a PCI address":        {[]string{"0000:5E:00.0"}, "GPU-b"},
		"IDs":                  {[]string{"example.com/gpu=gpu0", "GPU-a"}, "GPU-a example.com/gpu=gpu0"},
		"nothing that is here": {[]string{"B300"}, ""},
		"a part of a word":     {[]string{"A10"}, ""},
	} {
		found := threeGPUs()
		found.keep(c.allowed)
		if got := strings.Join(offered(found), " "); got != c.want {
			t.Errorf("%s: offered %q, want %q", name, got, c.want)
		}
		n := &Node{found: &found}
		for _, g := range found.GPUs {
			_, err := n.Edits(t.Context(), []api.DeviceClaim{{Class: "gpu", Device: g.ID, Way: "whole"}})
			if kept := !slices.Contains(offered(found), g.ID); kept != (err != nil && strings.Contains(err.Error(), "its operator keeps it")) {
				t.Errorf("%s: a member gets %s: %v", name, g.ID, err)
			}
		}
		if said := strings.Join(found.Problems, "; "); (name == "nothing that is here" || name == "a part of a word") != strings.Contains(said, "is none of the node's GPUs") {
			t.Errorf("%s: it is said %q", name, said)
		}
	}
}

func TestKindsHaveTheOperatorsNames(t *testing.T) {
	found := threeGPUs()
	found.name([]Kind{{"big", "H200"}, {"big", "GPU-a"}, {"lab", "0000:3b:00.0"}, {"old", "A100 SXM4"}})
	var kinds []string
	for _, d := range found.Devices() {
		kinds = append(kinds, d.ID+": "+strings.Join(d.Kinds, ","))
	}
	if got, want := strings.Join(kinds, "; "), "GPU-a: big,lab; GPU-b: old; example.com/gpu=gpu0: "; got != want {
		t.Errorf("kinds %q, want %q", got, want)
	}
	for text, bad := range map[string]bool{"big=H200": false, "a.b_c-1=example.com/gpu=gpu0": false, "big": true, "big=": true, "=H200": true, "any=H200": true, "Remote=x": true, "1x=y": true, "a b=c": true} {
		if _, err := ParseKind(text); (err != nil) != bad {
			t.Errorf("%q: %v, want an error: %t", text, err, bad)
		}
	}
}
