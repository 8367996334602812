package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTheBenchMeasuresWhatTheMachineHasRoomForAndNamesTheRest(t *testing.T) {
	for _, test := range []struct {
		name  string
		sizes []int
		room  int
		fit   []int
		says  string
	}{
		{"room for all", []int{1, 8, 32}, 86, []int{1, 8, 32}, ""},
		{"room for exactly the largest", []int{1, 8, 32}, 32, []int{1, 8, 32}, ""},
		{"room for all but the largest", []int{1, 8, 32}, 22, []int{1, 8}, "32 members omitted: this machine has room for 22 of 256MiB each"},
		{"room for the smallest only", []int{1, 8, 32}, 3, []int{1}, "8 and 32 members omitted: this machine has room for 3 of 256MiB each"},
		{"room for none of the sizes", []int{8, 32}, 5, []int{5}, "8 and 32 members omitted: this machine has room for 5 of 256MiB each"},
		{"no room", []int{1}, 0, nil, "1 members omitted: this machine has room for 0 of 256MiB each"},
	} {
		t.Run(test.name, func(t *testing.T) {
			fit, out := fitting(test.sizes, test.room)
			if says := leftOut(out, test.room, memory); !slices.Equal(fit, test.fit) || says != test.says {
				t.Errorf("got %v and %q, want %v and %q", fit, says, test.fit, test.says)
			}
		})
	}
}

func TestEmulatedMachinesOfARushFitTheMemory(t *testing.T) {
	for gib, want := range map[int64]int{2: 0, 6: 1, 8: 2, 12: 4, 16: rushMachines, 256: rushMachines} {
		if got := machinesFor(gib << 30); got != want {
			t.Errorf("%d GiB: got %d machines, want %d", gib, got, want)
		}
	}
}

func TestPartsAreChosenByTheirNamesAndGroups(t *testing.T) {
	for _, c := range []struct{ name, list, want string }{
		{"one part", "jobs", "jobs"},
		{"a group and a part of another", "netboot,idle", "dhcp transfers storms images that machines boot idle"},
		{"virtual machines boot images", "many", "images that machines boot many"},
		{"builds make the images", "builds,rush", "builds rush"},
		{"life without sides", "life", "life"},
		{"life with sides", "life,sides", "scaling, healing, lists and watches sides life"},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen, err := choose(c.list)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range (options{chosen: chosen}).steps() {
				names = append(names, s.name)
			}
			slices.Sort(names)
			want := strings.Fields(c.want)
			got := strings.Fields(strings.Join(names, " "))
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
	if _, err := choose("jobs,vms"); err == nil || !strings.Contains(err.Error(), `there is no part "vms"`) || !strings.Contains(err.Error(), "vm (starts, many,") {
		t.Errorf("an unknown part: got %v", err)
	}
}

func TestEveryPartOfTheBenchIsAnnouncedWithATime(t *testing.T) {
	chosen, err := choose("")
	if err != nil {
		t.Fatal(err)
	}
	steps := options{sizes: []int{1, 8, 32}, rounds: 10, podman: true, chosen: chosen}.steps()
	if want := len(allParts()) + 1; len(steps) != want { // life is two steps
		t.Errorf("got %d steps, want %d", len(steps), want)
	}
	for _, s := range steps {
		if s.took <= 0 {
			t.Errorf("%s is announced without a time", s.name)
		}
	}
}
