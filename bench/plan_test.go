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

func TestEveryPartOfTheBenchIsAnnouncedWithATime(t *testing.T) {
	all := options{
		sizes: []int{1, 8, 32}, rounds: 10, podman: true, placement: true, life: true, noise: true, across: true, thousand: true, sides: true, jobs: true, clusters: true,
		netboot: "dhcp,transfers,storms", machines: "builds,boots,rush,enrolment", vm: "starts,saves",
	}
	noBuilds, networkOnly := all, all
	noBuilds.machines, noBuilds.vm = "rush", ""
	networkOnly.machines, networkOnly.vm, networkOnly.clusters = "", "", false
	machinesOnly := networkOnly
	machinesOnly.netboot, machinesOnly.vm = "", "many"
	for _, test := range []struct {
		name string
		o    options
		want string
	}{
		{"everything", all, "builds dhcp transfers storms boots rush enrolment " + stepVM + "starts " + stepVM + "saves " + stepLife + " " + stepSides + " " + stepSilent + " " + stepNoise + " " + stepAcross + " " + stepThousand + " " + stepJobs + " " + stepPlacement},
		{"images only to boot them", noBuilds, stepImages + " dhcp transfers storms rush " + stepLife + " " + stepSides + " " + stepSilent + " " + stepNoise + " " + stepAcross + " " + stepThousand + " " + stepJobs + " " + stepPlacement},
		{"network boot only", networkOnly, "dhcp transfers storms"},
		{"virtual machines only", machinesOnly, stepImages + " " + stepVM + "many"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steps, err := test.o.steps()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, s := range steps {
				names = append(names, s.name)
				if s.took <= 0 {
					t.Errorf("%s is announced without a time", s.name)
				}
			}
			if got := strings.Join(names, " "); got != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}
