package hostsnapshot

import "testing"

// family makes a snapshot of processes given as PID: parent; every process started at tick PID.
func family(taker int, adopting bool, parents map[int]int) Snapshot {
	s := Snapshot{
		processes: map[int]process{}, items: map[Kind]map[string]Item{Process: {}, Socket: {}},
		taker: ProcessID{taker, uint64(taker)}, adopting: adopting,
	}
	for pid, ppid := range parents {
		s.processes[pid] = process{id: ProcessID{pid, uint64(pid)}, ppid: ppid, command: "x"}
	}
	return s
}

func TestDescentDecidesWhoseAThingIs(t *testing.T) {
	// 1 is init, 10 an unrelated daemon, 20 the shell of the taker 30.
	base := map[int]int{1: 0, 10: 1, 20: 1, 30: 20}
	for _, c := range []struct {
		name     string
		adopting bool
		extra    map[int]int
		holder   int
		want     Verdict
	}{
		{"a child of the taker", true, map[int]int{40: 30}, 40, Left},
		{"a grandchild of the taker", true, map[int]int{40: 30, 41: 40}, 41, Left},
		{"a child of an unrelated daemon", true, map[int]int{40: 10}, 40, Others},
		{"a grandchild of an unrelated daemon, without adoption", false, map[int]int{40: 10, 41: 40}, 41, Others},
		{"an orphan of init, with adoption", true, map[int]int{40: 1}, 40, Others},
		{"an orphan of init, without adoption", false, map[int]int{40: 1}, 40, Left},
		{"a sibling from the same shell, without adoption", false, map[int]int{40: 20}, 40, Left},
		{"a sibling from the same shell, with adoption", true, map[int]int{40: 20}, 40, Others},
		{"a process from outside this PID namespace, with adoption", true, map[int]int{40: 0}, 40, Others},
		{"a process from outside this PID namespace, without adoption", false, map[int]int{40: 0}, 40, Left},
		{"a holder that is gone", true, nil, 40, Left},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := map[int]int{}
			for pid, ppid := range base {
				now[pid] = ppid
			}
			for pid, ppid := range c.extra {
				now[pid] = ppid
			}
			before, after := family(30, c.adopting, base), family(30, c.adopting, now)
			after.items[Socket]["tcp 127.0.0.1:1"] = Item{holders: []ProcessID{{c.holder, uint64(c.holder)}}}
			got := before.Diff(after)
			if len(got) != 1 || got[0].Verdict != c.want {
				t.Errorf("got %v, want one difference with the verdict %q", got, c.want)
			}
		})
	}
}

func TestAThingThatOursAndOthersHoldIsOurs(t *testing.T) {
	base := map[int]int{1: 0, 10: 1, 30: 1}
	before, after := family(30, true, base), family(30, true, map[int]int{1: 0, 10: 1, 30: 1, 40: 30})
	after.items[Socket]["tcp 127.0.0.1:1"] = Item{holders: []ProcessID{{10, 10}, {40, 40}}}
	if got := Counting(before.Diff(after)); len(got) != 1 {
		t.Errorf("got %v, want the socket", got)
	}
}

func TestAFileBelongsToThoseWhoUseItsDirectory(t *testing.T) {
	base := map[int]int{1: 0, 10: 1, 30: 1}
	for _, c := range []struct {
		name string
		user int
		root string
		want Verdict
	}{
		{"an unrelated daemon works in the directory", 10, "/tmp", Others},
		{"the taker works in the directory", 30, "/tmp", Left},
		{"the daemon works only in the shared root", 10, "/tmp/dir", Left},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := family(30, true, base), family(30, true, base)
			after.items[File] = map[string]Item{
				"/tmp/dir/new":  {place: "/tmp/dir/new"},
				"/tmp/dir/held": {place: "/tmp/dir/held", holders: []ProcessID{{c.user, uint64(c.user)}}},
			}
			before.items[File] = map[string]Item{"/tmp/dir/held": after.items[File]["/tmp/dir/held"]}
			after.roots, after.territory = map[string]bool{c.root: true}, territories(after)
			got := before.Diff(after)
			if len(got) != 1 || got[0].Verdict != c.want {
				t.Errorf("got %v, want one difference with the verdict %q", got, c.want)
			}
		})
	}
}

func TestWithAGroupAFileIsTheProgramsByItsGroupOrHolderOnly(t *testing.T) {
	base := map[int]int{1: 0, 10: 1, 30: 1}
	ours, theirs := ProcessID{30, 30}, ProcessID{10, 10}
	for _, c := range []struct {
		name string
		item Item
		want Verdict
	}{
		{"a file of the group", Item{ours: true}, Left},
		{"a file of the group that another program has open", Item{ours: true, holders: []ProcessID{theirs}}, Left},
		{"a file without the group that the taker has open", Item{holders: []ProcessID{ours}}, Left},
		{"a file without the group that another program has open", Item{holders: []ProcessID{theirs}}, Others},
		{"a file without the group, beside one that the taker has open", Item{}, Unknown},
		{"a file without the group that a process unheard of has open", Item{holders: []ProcessID{{99, 99}}}, Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := family(30, true, base), family(30, true, base)
			before.group, after.group = 5, 5
			c.item.place = "/tmp/dir/new"
			held := Item{place: "/tmp/dir/held", holders: []ProcessID{ours}}
			before.items[File] = map[string]Item{"/tmp/dir/held": held}
			after.items[File] = map[string]Item{"/tmp/dir/held": held, "/tmp/dir/new": c.item}
			after.territory = territories(after)
			if got := before.Diff(after); len(got) != 1 || got[0].Verdict != c.want {
				t.Errorf("got %v, want one difference with the verdict %q", got, c.want)
			}
		})
	}
}

func TestACgroupOfTheProgramIsLeftUnlessOthersKeepIt(t *testing.T) {
	base := map[int]int{1: 0, 10: 1, 30: 1}
	ours, theirs := ProcessID{30, 30}, ProcessID{10, 10}
	for _, c := range []struct {
		name string
		item Item
		want Verdict
	}{
		{"an empty one", Item{ours: true}, Left},
		{"one with a process of another run below it", Item{ours: true, holders: []ProcessID{theirs}}, Others},
		{"one with processes of both", Item{ours: true, holders: []ProcessID{theirs, ours}}, Left},
		{"one with a process unheard of", Item{ours: true, holders: []ProcessID{{99, 99}}}, Left},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := family(30, true, base), family(30, true, base)
			before.group, after.group = 5, 5
			after.items[Cgroup] = map[string]Item{"/sys/fs/cgroup/nearmetal": c.item}
			if got := before.Diff(after); len(got) != 1 || got[0].Verdict != c.want {
				t.Errorf("got %v, want one difference with the verdict %q", got, c.want)
			}
		})
	}
}

func TestAReusedPIDIsAnotherProcess(t *testing.T) {
	base := map[int]int{1: 0, 10: 1, 30: 1}
	before, after := family(30, false, base), family(30, false, base)
	reborn := after.processes[10]
	reborn.id.StartTicks = 99
	after.processes[10] = reborn
	after.items[Socket]["tcp 127.0.0.1:1"] = Item{holders: []ProcessID{reborn.id}}
	if got := Counting(before.Diff(after)); len(got) != 1 {
		t.Errorf("got %v, want the socket: PID 10 is not the process it was", got)
	}
}

func TestAddressesAreReadAsTheKernelWritesThem(t *testing.T) {
	for in, want := range map[string]string{
		"0100007F:1F90": "127.0.0.1:8080", "00000000000000000000000001000000:0016": "[::1]:22", "odd": "odd",
	} {
		if got := decodeAddress(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
