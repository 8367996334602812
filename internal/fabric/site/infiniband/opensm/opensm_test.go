package opensm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func epoch(revision int64) lifecycle.Epoch { return lifecycle.Epoch{Term: 1, Revision: revision} }

// network is one with these hosts' ports.
func (l *lab) network(number int, hosts ...int) site.Network {
	n := site.Network{Number: number}
	for _, host := range hosts {
		n.Ports = append(n.Ports, site.Port{At: l.guid(host)})
	}
	return n
}

func (l *lab) apply(s *Site, e lifecycle.Epoch, networks ...site.Network) {
	l.t.Helper()
	if err := s.Apply(l.t.Context(), e, networks); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) observe(s *Site) site.Observation {
	l.t.Helper()
	seen, err := s.Observe(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return seen
}

// has reports whether a host's port was read in a network.
func (l *lab) has(seen site.Observation, number, host int) bool {
	for _, n := range seen.Networks {
		for _, p := range n.Ports {
			if n.Number == number && p.At == l.guid(host) {
				return true
			}
		}
	}
	return false
}

// table returns a port's partition keys as smpquery, another program, reads them.
func (l *lab) table(host int) string {
	l.t.Helper()
	out, err := l.fabric.Command(l.t.Context(), l.fabric.Hosts[host-1].Name, "smpquery", "-D", "pkeys", "0").CombinedOutput()
	if err != nil {
		l.t.Fatalf("smpquery: %v: %s", err, out)
	}
	var keys []string
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "0x") && word != "0x0000" {
			keys = append(keys, word)
		}
	}
	return strings.Join(keys, " ")
}

func TestTwoTenantsHavePartitionsOfTheirOwnAndShareStorageAsLimitedMembers(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(5))
	s := l.executor()
	storage := site.Network{Number: 0x30, Partition: api.Partition{IPoIB: true, MTUBytes: 4096, RateGbps: 10}, Ports: []site.Port{
		{At: l.guid(2), Limited: true}, {At: l.guid(3), Limited: true}, {At: l.guid(5)},
	}}
	l.apply(s, epoch(1), l.network(0x10, 2), l.network(0x20, 3, 4), storage)
	seen := l.observe(s)
	for host, want := range map[int]string{2: "0x7fff 0x8010 0x0030", 3: "0x7fff 0x8020 0x0030", 4: "0x7fff 0x8020", 5: "0x7fff 0x8030"} {
		if got := l.table(host); got != want {
			t.Errorf("host %d has the partition keys %s by smpquery, want %s; observed %v", host, got, want, seen.Networks)
		}
	}
	if seen.Epoch != epoch(1) || len(seen.Unknown) > 0 || l.has(seen, 0x20, 2) || l.has(seen, 0x10, 3) {
		t.Errorf("observed %+v", seen)
	}
}

func TestAChangeReadsThePortsThatItChangesAndNoOthers(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(6))
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2, 3), l.network(0x20, 4, 5))
	l.observe(s)
	audited := s.Report()
	if audited.PortsRead != 6 {
		t.Errorf("the first look read %d ports of 6", audited.PortsRead)
	}
	l.apply(s, epoch(2), l.network(0x10, 2, 6), l.network(0x20, 4, 5))
	seen := l.observe(s)
	if r := s.Report(); r.PortsRead-audited.PortsRead != 2 || !r.Audited.Equal(audited.Audited) {
		t.Errorf("one port that joined and one that left: %d ports were read, want 2", r.PortsRead-audited.PortsRead)
	}
	if seen.Epoch != epoch(2) || !l.has(seen, 0x10, 6) || l.has(seen, 0x10, 3) || !l.has(seen, 0x20, 4) {
		t.Errorf("observed %+v", seen)
	}
}

func TestAPortIsNeverPresentWhileOpenSMIsNotTold(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	s := l.executor()
	l.deaf, s.patience = true, 100*time.Millisecond
	l.apply(s, epoch(1), l.network(0x10, 2))
	for range 3 {
		if seen := l.observe(s); l.has(seen, 0x10, 2) || seen.Epoch != (lifecycle.Epoch{}) || seen.Clean(epoch(1), 0x10, l.guid(3)) == nil {
			t.Fatalf("observed %+v: the file alone is taken for the fabric", seen)
		}
	}
	l.deaf, s.patience = false, sweepTime
	s.reloaded = time.Time{}
	l.apply(s, epoch(1), l.network(0x10, 2))
	if seen := l.observe(s); !l.has(seen, 0x10, 2) || seen.Epoch != epoch(1) {
		t.Errorf("after the signal: %+v", seen)
	}
}

func TestAnExecutorThatIsStartedAnewReadsWhatIsThereBeforeItApplies(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2))
	l.observe(s)
	if seen := l.observe(l.executor()); !l.has(seen, 0x10, 2) || seen.Epoch != (lifecycle.Epoch{}) {
		t.Errorf("observed %+v", seen)
	}
}

func TestAnEarlierFileThatOpenSMHasYetToCarryOutProvesNothing(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2))
	l.observe(s)
	l.deaf, s.patience = true, 100*time.Millisecond
	l.apply(s, epoch(2), l.network(0x10, 2, 3)) // host 3 is on its way
	l.apply(s, epoch(3), l.network(0x10, 2))    // the tables are as this desires already
	if seen := l.observe(s); seen.Clean(epoch(3), 0x10, l.guid(3)) == nil {
		t.Errorf("host 3 counts as clean although its file may yet be carried out: %+v", seen)
	}
}

func TestWhileOpenSMIsDownChangesWaitAndAreCarriedOutWhenItStarts(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2))
	l.observe(s)
	l.manager.Stop()
	err := s.Apply(t.Context(), epoch(2), []site.Network{l.network(0x10, 2, 3)})
	if !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "queued") {
		t.Errorf("got %v, want that the change is queued", err)
	}
	s.reloaded = time.Time{}
	seen := l.observe(s)
	if !l.has(seen, 0x10, 2) || l.has(seen, 0x10, 3) || seen.Epoch != epoch(1) {
		t.Errorf("without a subnet manager: %+v", seen)
	}
	l.manage()
	l.apply(s, epoch(2), l.network(0x10, 2, 3))
	if seen := l.observe(s); !l.has(seen, 0x10, 3) || seen.Epoch != epoch(2) {
		t.Errorf("with OpenSM again: %+v", seen)
	}
}

func TestAStandbyTakesOverWithTheSameFile(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(4))
	l.cfg.Managers = []Manager{{l.guid(1), 3}, {l.guid(2), 1}}
	standby, err := l.fabric.Manage(t.Context(), "n2", 1, l.cfg.Partitions)
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	l.runOn("n4")
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 3))
	l.observe(s)
	if r := s.Report(); len(r.Alarms) > 0 || len(r.Managers) != 2 {
		t.Errorf("with master and standby: %+v", r)
	}
	l.manager.Stop()
	l.await("the standby is master", func() bool {
		_, _ = s.readMarker(t.Context())
		return fmt.Sprintf("%016x", s.fabric.master.GUID) == l.guid(2)
	})
	l.apply(s, epoch(2), l.network(0x10, 3, 4))
	s.fabric.full = time.Time{}
	if seen := l.observe(s); !l.has(seen, 0x10, 4) || seen.Epoch != epoch(2) {
		t.Errorf("under the standby: %+v", seen)
	}
	if r := s.Report(); len(r.Alarms) != 1 || r.Alarms[0].Kind != site.ManagerMissing || !strings.Contains(r.Alarms[0].Message, l.guid(1)+" is not running") {
		t.Errorf("alarms: %v", r.Alarms)
	}
}

func TestAFileChangedByHandIsRestoredAndReported(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2))
	l.observe(s)
	if err := os.WriteFile(l.cfg.Partitions, []byte("Default=0x7fff: ALL=full;\nnearmetal-0010=0x10"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.swept()
	s.patience = 0
	s.fabric.full = time.Time{} // the next audit
	if seen := l.observe(s); l.has(seen, 0x10, 2) {
		t.Fatalf("the damage did nothing: %+v", seen)
	}
	s.patience = sweepTime
	l.apply(s, epoch(1), l.network(0x10, 2))
	if seen := l.observe(s); !l.has(seen, 0x10, 2) || seen.Epoch != epoch(1) || s.Report().Drifts != 1 {
		t.Errorf("after the repair: %+v, %+v", seen, s.Report())
	}
	edited := func() bool {
		return slices.ContainsFunc(s.Alarms(), func(a site.Alarm) bool { return a.Kind == site.PartitionsEdited })
	}
	if !edited() {
		t.Errorf("nobody is alarmed: %v", s.Alarms())
	}
	s.report.LastDrift = time.Now().Add(-driftStands)
	if edited() {
		t.Error("the alarm has no end")
	}
}

func TestTheOperatorsPartitionsAreKeptAndADamagedFileIsRefused(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	l.cfg.Operator = filepath.Join(t.TempDir(), "own.conf")
	own := func(text string) {
		if err := os.WriteFile(l.cfg.Operator, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	own("Default=0x7fff, ipoib: ALL=full;\nlustre=0x700: 0x" + l.guid(3) + "=full;\n")
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2))
	seen := l.observe(s)
	if got := l.table(3); got != "0xffff 0x8700" || l.has(seen, 0x700, 3) || !l.has(seen, 0x10, 2) {
		t.Errorf("host 3 has %s, observed %+v: want the operator's partition, which is no network", got, seen)
	}
	before, _ := os.ReadFile(l.cfg.Partitions)
	for text, want := range map[string]string{
		"lustre=0x700: 0x" + l.guid(3): "line 1: the definition that begins there has no semicolon", "\nx=0x700 0x1;": "line 2: there is no colon",
		"x=0x10: ALL;": "partition key 0x0010 is the operator's", "x: ALL;": "has no key",
	} {
		own(text)
		err := s.Apply(t.Context(), epoch(2), []site.Network{l.network(0x10, 2)})
		after, _ := os.ReadFile(l.cfg.Partitions)
		if err == nil || !strings.Contains(err.Error(), want) || string(before) != string(after) {
			t.Errorf("%q: got %v, want %q and an unchanged file", text, err, want)
		}
	}
}

func TestAFileOfTheOperatorsIsNotOverwritten(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(2))
	if err := os.WriteFile(l.cfg.Partitions, []byte("Default=0x7fff: ALL=full;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := l.executor().Apply(t.Context(), epoch(1), nil); err == nil || !strings.Contains(err.Error(), "would be lost; move it") {
		t.Errorf("got %v", err)
	}
}

func TestAPortInMorePartitionsThanItsTableHasRoomForIsRefused(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(2))
	s := l.executor()
	l.apply(s, epoch(1), l.network(0x10, 2))
	l.observe(s) // ibsim's tables have 64 entries
	var networks []site.Network
	for i := range 62 {
		networks = append(networks, l.network(0x100+i, 2))
	}
	l.apply(s, epoch(2), networks...)
	if seen := l.observe(s); seen.Epoch != epoch(2) || !l.has(seen, 0x100+61, 2) {
		t.Errorf("a full table: %+v", seen)
	}
	networks = append(networks, l.network(0x200, 2))
	err := s.Apply(t.Context(), epoch(3), networks)
	if err == nil || !strings.Contains(err.Error(), "port "+l.guid(2)+" would be in 65 partitions, and its table has room for 64") {
		t.Errorf("got %v", err)
	}
	refusal := (*site.Refusal)(nil)
	if err := s.Check(networks); !errors.As(err, &refusal) || refusal.Number != 0 {
		t.Errorf("the check before admission returned %v", err)
	}
}

func TestASubnetManagerThatIsNotConfiguredIsAnAlarmUntilItEnds(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(3))
	l.cfg.Managers = []Manager{{l.guid(1), 5}}
	// The rogue is there first: managers that hand over to one another can wait for each other for good where messages get lost.
	l.manager.Stop()
	rogue, err := l.fabric.Manage(t.Context(), "n3", 9, "")
	if err != nil {
		t.Fatal(err)
	}
	if l.manager, err = l.fabric.Manage(t.Context(), "n1", 3, l.cfg.Partitions); err != nil {
		t.Fatal(err)
	}
	l.runOn("n2")
	s := l.executor()
	alarm := func(kind site.AlarmKind, guid string) string {
		s.fabric.full = time.Time{} // the next audit
		l.observe(s)
		for _, a := range s.Alarms() {
			if a.Kind == kind && a.Subject == guid {
				return a.Message
			}
		}
		return ""
	}
	l.await("the rogue is master", func() bool {
		text := alarm(site.UnexpectedManager, l.guid(3))
		return strings.Contains(text, "port "+l.guid(3)+" has a subnet manager that is not configured, of priority 9 and master")
	})
	if text := alarm(site.ManagerPriority, l.guid(1)); !strings.Contains(text, "has priority 3, and is configured with 5") {
		t.Errorf("the alarm of the configured manager's priority is %q", text)
	}
	rogue.Stop()
	l.await("the alarm ends with the rogue", func() bool { return alarm(site.UnexpectedManager, l.guid(3)) == "" })
}

func TestASupervisorStartsOpenSMRestartsItAndFindsItAgain(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(2))
	l.manager.Stop()
	l.manager = nil
	v := Supervisor{Manager: Manager{l.guid(1), 7}, Partitions: l.cfg.Partitions, LogDir: filepath.Join(t.TempDir(), "log"), Run: l.cfg.Run, Log: l.cfg.Log}
	keep := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); v.Keep(ctx) }()
		return func() { cancel(); <-done }
	}
	s := l.executor()
	up := func(what string, priority int) {
		t.Helper()
		l.await(what, func() bool {
			_, _ = s.readMarker(t.Context())
			return s.fabric.master.Priority == priority
		})
	}
	end := keep()
	up("OpenSM is started", 7)
	end()
	up("OpenSM outlives its supervisor", 7)
	end = keep()
	defer end()
	t.Cleanup(func() {
		if err := Stop(context.WithoutCancel(t.Context()), l.cfg.Partitions); err != nil {
			t.Error(err)
		}
	})
	first, err := running(l.cfg.Partitions)
	if err != nil || len(first) != 1 {
		t.Fatalf("%d OpenSM run, %v", len(first), err)
	}
	defer closeAll(first)
	if err := Stop(t.Context(), l.cfg.Partitions); err != nil {
		t.Fatal(err)
	}
	if err := first[0].Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The first has ended: one that runs, and is heard by a reader that never heard the first, is its successor.
	l.await("another OpenSM runs", func() bool {
		next, err := running(l.cfg.Partitions)
		closeAll(next)
		return err == nil && len(next) == 1
	})
	l.cfg.Reload = nil
	s = l.executor()
	up("OpenSM is restarted", 7)
	l.apply(s, epoch(1), l.network(0x10, 2))
	if seen := l.observe(s); !l.has(seen, 0x10, 2) {
		t.Errorf("observed %+v", seen)
	}
}

func TestAFabricWithManagedKeysIsSupervisedAndRead(t *testing.T) {
	l := newLab(t, ibsim.OneSwitch(2))
	l.manager.Stop()
	l.manager = nil
	made, err := ManagedKeys(l.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ManagedKeys(l.cfg.Dir); err != nil || again != made {
		t.Errorf("another server has other keys: %v", err)
	}
	own := filepath.Join(t.TempDir(), "own.conf")
	if err := os.WriteFile(own, []byte("sweep_interval 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := Supervisor{Manager: Manager{l.guid(1), 7}, Partitions: l.cfg.Partitions, Options: own, Keys: made, LogDir: filepath.Join(t.TempDir(), "log"), Run: l.cfg.Run, Log: l.cfg.Log}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); v.Keep(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := Stop(context.WithoutCancel(t.Context()), l.cfg.Partitions); err != nil {
			t.Error(err)
		}
	})
	l.cfg.Keys, l.cfg.Reload = made, nil
	s := l.executor()
	l.await("OpenSM is started", func() bool {
		_, _ = s.readMarker(t.Context())
		return s.fabric.master.Priority == 7
	})
	l.apply(s, epoch(1), l.network(0x10, 2))
	if seen := l.observe(s); !l.has(seen, 0x10, 2) || !s.Guarded() {
		t.Errorf("observed %+v", seen)
	}
	if survey, err := s.Survey(t.Context()); err != nil || len(survey.Topology.Hosts) != 2 || len(survey.Counters) == 0 {
		t.Errorf("surveyed %+v, %v", survey, err)
	}
	options, err := os.ReadFile(filepath.Join(v.LogDir, "opensm.conf"))
	if want := fmt.Sprintf("sweep_interval 5\nm_key 0x%016x\nsm_key 0x%016x\n", made.Management, made.Manager); err != nil || !strings.HasPrefix(string(options), want) {
		t.Error("OpenSM was not given the operator's options and the keys: ", err)
	}
	lines, err := os.ReadFile(filepath.Join(v.LogDir, "opensm.log"))
	if err != nil || strings.Contains(string(lines), fmt.Sprintf("%016x", made.Management)) {
		t.Error("OpenSM's log shows the M_Key, or can't be read: ", err)
	}
}
