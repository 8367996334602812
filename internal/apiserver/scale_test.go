package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// grown is an intent with groups of these sizes, whose members have the ranks of a first placement.
func grown(sizes ...int) (*api.ClusterIntent, map[string]int) {
	in := &api.ClusterIntent{Name: "c1"}
	for i, size := range sizes {
		in.Spec.Groups = append(in.Spec.Groups, api.Group{Name: string(rune('a' + i)), Size: size, Shape: api.Shape{Cores: 1}})
	}
	rank := map[string]int{}
	for _, m := range lifecycle.DesiredMembers(in.Spec, nil) {
		rank[m.Member] = m.Rank
	}
	return in, rank
}

func wanted(in *api.ClusterIntent) []string {
	names := []string{}
	for _, m := range lifecycle.DesiredMembers(in.Spec, in.Removed) {
		names = append(names, m.Member)
	}
	return names
}

func TestScalingChangesWhichMembersThereAre(t *testing.T) {
	tests := []struct {
		name  string
		sizes []int
		steps []api.ScaleRequest
		want  string
	}{
		{"growing adds the next names", []int{2}, []api.ScaleRequest{{Size: 4}}, "a-0 a-1 a-2 a-3"},
		{"shrinking releases the highest ranks", []int{4}, []api.ScaleRequest{{Size: 2}}, "a-0 a-1"},
		{"the same size changes nothing", []int{3}, []api.ScaleRequest{{Size: 3}}, "a-0 a-1 a-2"},
		{"one group grows, the other stays", []int{1, 2}, []api.ScaleRequest{{Group: "b", Size: 3}}, "a-0 b-0 b-1 b-2"},
		{"a member is removed by name", []int{4}, []api.ScaleRequest{{Remove: []string{"a-1"}}}, "a-0 a-2 a-3"},
		{"several of several groups", []int{3, 3}, []api.ScaleRequest{{Remove: []string{"a-2", "b-0"}}}, "a-0 a-1 b-1 b-2"},
		{"a name that was taken out comes back first", []int{4}, []api.ScaleRequest{{Remove: []string{"a-1"}}, {Size: 4}}, "a-0 a-1 a-2 a-3"},
		{"the lowest first", []int{5}, []api.ScaleRequest{{Remove: []string{"a-1", "a-3"}}, {Size: 4}}, "a-0 a-1 a-2 a-4"},
		{"named twice is removed once", []int{3}, []api.ScaleRequest{{Remove: []string{"a-1", "a-1"}}}, "a-0 a-2"},
		{"the last of a row leaves no trace", []int{3}, []api.ScaleRequest{{Remove: []string{"a-2"}}}, "a-0 a-1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, rank := grown(tt.sizes...)
			for _, step := range tt.steps {
				if err := changeMembers(in, step, nil, rank); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(wanted(in), " "); got != tt.want {
				t.Errorf("members %q, want %q (removed %v)", got, tt.want, in.Removed)
			}
		})
	}
}

func TestShrinkingReleasesByRankNotByName(t *testing.T) {
	in, rank := grown(4)
	rank["a-1"] = 7 // was taken out, came back, and got a new rank
	if err := changeMembers(in, api.ScaleRequest{Size: 3}, nil, rank); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a-0", "a-2", "a-3"}, wanted(in)); diff != "" {
		t.Errorf("the highest rank was to go (-want +got):\n%s", diff)
	}
	delete(rank, "a-2") // has no place yet: goes before those that have one
	if err := changeMembers(in, api.ScaleRequest{Size: 2}, nil, rank); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a-0", "a-3"}, wanted(in)); diff != "" {
		t.Errorf("who waits was to go first (-want +got):\n%s", diff)
	}
}

func TestWhatCanNotBeScaledIsSaidAndChangesNothing(t *testing.T) {
	tests := []struct {
		name  string
		sizes []int
		req   api.ScaleRequest
		src   *manifest.Source
		want  []string
	}{
		{"nothing asked for", []int{2}, api.ScaleRequest{}, nil, []string{"size: is missing"}},
		{"size 0", []int{2}, api.ScaleRequest{}, manifest.Flags("size"), []string{"size: 0 is too small; give at least 1, or delete the cluster"}},
		{"negative", []int{2}, api.ScaleRequest{Size: -1}, nil, []string{"-1 is too small"}},
		{"too many", []int{2, 2}, api.ScaleRequest{Group: "a", Size: 4092}, nil, []string{"size: 4092 is too large", "4093 members"}},
		{"unknown group", []int{2, 2}, api.ScaleRequest{Group: "aa", Size: 1}, nil, []string{`group: "aa" is not a group`, `did you mean "a"?`}},
		{"group missing", []int{2, 2}, api.ScaleRequest{Size: 1}, nil, []string{`group: is missing`, `"a", "b"`}},
		{"empty group", []int{2}, api.ScaleRequest{Size: 1}, manifest.Flags("group"), []string{`"" is not a group`}},
		{"both", []int{2}, api.ScaleRequest{Size: 1, Remove: []string{"a-1"}}, nil, []string{"conflicts with size"}},
		{"unknown member", []int{2}, api.ScaleRequest{Remove: []string{"a-2", "b-0", "a-01", "a-"}}, nil, []string{
			`remove[0]: "a-2" is not a member`, `remove[1]: "b-0"`, `remove[2]: "a-01"`, `remove[3]: "a-"`,
		}},
		{"rank 0", []int{2}, api.ScaleRequest{Remove: []string{"a-0"}}, nil, []string{`"a-0" is rank 0`}},
		{"another group's", []int{2, 2}, api.ScaleRequest{Group: "a", Remove: []string{"b-1"}}, nil, []string{`"b-1" is not a member of group "a"`}},
		{"all of a group", []int{1, 2}, api.ScaleRequest{Remove: []string{"b-0", "b-1"}}, nil, []string{`every member of group "b"`}},
		{"a spare", []int{2}, api.ScaleRequest{Remove: []string{"a-spare-0"}}, nil, []string{`"a-spare-0" is not a member`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, rank := grown(tt.sizes...)
			in.Spec.Groups[0].Spares = 1
			before := wanted(in)
			err := changeMembers(in, tt.req, tt.src, rank)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, text := range tt.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q lacks %q", err, text)
				}
			}
			if diff := cmp.Diff(before, wanted(in)); diff != "" {
				t.Errorf("members changed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnySeriesOfScalingsKeepsMembersInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, rank := grown(rapid.IntRange(1, 6).Draw(t, "a"), rapid.IntRange(1, 6).Draw(t, "b"))
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			before := wanted(in)
			size := map[string]int{"a": in.Spec.Groups[0].Size, "b": in.Spec.Groups[1].Size}
			if rapid.Bool().Draw(t, "by name") {
				name := rapid.SampledFrom(before).Draw(t, "name")
				group, _, _ := strings.Cut(name, "-")
				err := changeMembers(in, api.ScaleRequest{Remove: []string{name}}, nil, rank)
				if refused := err != nil; refused != (rank[name] == 0 && name == "a-0" || size[group] == 1) {
					t.Fatalf("removing %s of %v: %v", name, before, err)
				}
				if err == nil {
					if got, want := wanted(in), slices.DeleteFunc(slices.Clone(before), func(n string) bool { return n == name }); !slices.Equal(got, want) {
						t.Fatalf("removing %s of %v left %v", name, before, got)
					}
				}
			} else {
				group := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
				want := rapid.IntRange(1, 8).Draw(t, "size")
				if err := changeMembers(in, api.ScaleRequest{Group: group, Size: want}, nil, rank); err != nil {
					t.Fatalf("%s to %d: %v", group, want, err)
				}
				for _, name := range before {
					if g, _, _ := strings.Cut(name, "-"); (g != group || want >= size[g]) && !slices.Contains(wanted(in), name) {
						t.Fatalf("%s to %d of %v took out %s: %v", group, want, before, name, wanted(in))
					}
				}
			}
			settle(t, in, rank)
		}
	})
}

// settle gives new members the lowest free ranks, forgets those that went, and checks what always holds.
func settle(t *rapid.T, in *api.ClusterIntent, rank map[string]int) {
	names := wanted(in)
	used := map[int]bool{}
	for name, r := range rank {
		if slices.Contains(names, name) {
			used[r] = true
		} else {
			delete(rank, name)
		}
	}
	next := 0
	for _, name := range names {
		if _, ok := rank[name]; ok {
			continue
		}
		for used[next] {
			next++
		}
		rank[name], used[next] = next, true
	}
	if rank["a-0"] != 0 || len(names) != in.Spec.Groups[0].Size+in.Spec.Groups[1].Size {
		t.Fatalf("members %v, ranks %v, sizes %d and %d", names, rank, in.Spec.Groups[0].Size, in.Spec.Groups[1].Size)
	}
	if len(in.Removed) > 16 {
		t.Fatalf("%d names are noted as taken out: %v", len(in.Removed), in.Removed)
	}
	for _, name := range in.Removed {
		if slices.Contains(names, name) {
			t.Fatal(fmt.Sprintf("%s is both", name))
		}
	}
}
