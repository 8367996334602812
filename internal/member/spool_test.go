package member

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

func testSpool(t *testing.T, limit int64) *spool {
	t.Helper()
	s, err := newSpool(limit, time.Minute, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *spool) size() int64 {
	size, _ := s.counts()
	return size
}

func (s *spool) all(from int64) string {
	data, _ := s.read(from, 1<<30)
	return string(data)
}

func TestASpoolGivesBackTheMemoryOfWhatWasAcknowledged(t *testing.T) {
	s := testSpool(t, 1<<20)
	chunk := []byte(strings.Repeat("x", 64<<10))
	for i := range int64(100) {
		if n, err := s.Write(chunk); n != len(chunk) || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
		s.ack((i + 1) * int64(len(chunk)))
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	if held := stat.Blocks * 512; held > 128<<10 {
		t.Errorf("it holds %d bytes after all were acknowledged", held)
	}
	if s.size() != 100*int64(len(chunk)) {
		t.Errorf("its size is %d, want all that was ever written", s.size())
	}
}

// writing is a writer that may be held up.
type writing struct{ done chan struct{} }

func write(s *spool, text string) writing {
	w := writing{make(chan struct{})}
	go func() {
		defer close(w.done)
		_, _ = s.Write([]byte(text))
	}()
	synctest.Wait()
	return w
}

func (w writing) waits() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// checkCounts compares what a spool holds beyond offset, and its counts.
func checkCounts(t *testing.T, s *spool, offset int64, want string, discarded int64) {
	t.Helper()
	if got := s.all(offset); got != want {
		t.Errorf("from %d on it holds %d bytes %.200q, want %d bytes %.200q", offset, len(got), got, len(want), want)
	}
	if size, got := s.counts(); size != offset+int64(len(want)) || got != discarded {
		t.Errorf("it counts %d bytes and %d discarded, want %d and %d", size, got, offset+int64(len(want)), discarded)
	}
}

func TestAFullSpoolHoldsItsWriterUpUntilThereIsRoomAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSpool(t, 2048)
		all := strings.Repeat("a", 1000) + strings.Repeat("b", 3000)
		w := write(s, all)
		for _, acked := range []int64{1000, 1001, 2000} {
			time.Sleep(59 * time.Second) // within the patience since the last acknowledgement
			if !w.waits() {
				t.Fatalf("before %d are acknowledged: it does not wait, though %d bytes were written", acked, len(all))
			}
			s.ack(acked)
		}
		time.Sleep(59 * time.Second)
		if s.ack(3000); w.waits() {
			t.Error("it waits although there is room")
		}
		checkCounts(t, s, 3000, all[3000:], 0)
	})
}

func TestASpoolThatNothingIsFetchedFromDiscardsAfterItsPatienceMarksThePlaceAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSpool(t, 2048)
		w := write(s, strings.Repeat("a", 1000)+strings.Repeat("b", 1000)) // 792 of the latter fit below 2048 less the room for the note
		time.Sleep(time.Minute - 1)
		if !w.waits() {
			t.Fatal("it does not wait for a minute")
		}
		time.Sleep(time.Nanosecond)
		if w.waits() {
			t.Fatal("it waits for more than a minute")
		}
		if write(s, strings.Repeat("c", 500)).waits() {
			t.Error("what comes next waits as well")
		}
		s.ack(1500)
		if write(s, "d\n").waits() {
			t.Error("it waits although there is room")
		}
		checkCounts(t, s, 1500, strings.Repeat("b", 292)+
			"\n[nearmetal: 708 bytes of output are missing here, the control plane did not fetch it in time]\nd\n", 708)
		w = write(s, strings.Repeat("e", 2000))
		time.Sleep(time.Minute - 1)
		if !w.waits() {
			t.Error("with room in between, it does not wait for a minute again")
		}
		if time.Sleep(time.Nanosecond); w.waits() {
			t.Error("with room in between, it waits for more than a minute")
		}
		s.seal()
		if got := s.all(0); !strings.HasSuffix(got, "in time]\n") || strings.Count(got, "nearmetal") != 2 {
			t.Errorf("the end is not marked: %q", got[max(0, len(got)-100):])
		}
	})
}

func TestTimeForWhichTheMemberWasFrozenIsNoTimeInWhichNothingWasFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSpool(t, 2048)
		var frozen atomic.Int64
		s.now = func() time.Time { return time.Now().Add(time.Duration(frozen.Load())) }
		w := write(s, strings.Repeat("a", 3000))
		time.Sleep(50 * time.Second)
		frozen.Store(int64(time.Hour))
		time.Sleep(50 * time.Second)
		if !w.waits() {
			t.Error("it discards output a moment after it was frozen")
		}
		if time.Sleep(time.Minute); w.waits() {
			t.Error("it goes on waiting")
		}
	})
}

func TestOutputBeyondWhatTheServerStoresIsDiscardedAtOnceAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSpool(t, 2048)
		w := write(s, strings.Repeat("a", 3000))
		s.ack(100)
		if s.discard(1200); w.waits() {
			t.Error("the writer waits though nothing will be fetched")
		}
		if write(s, strings.Repeat("b", 1<<20)).waits() {
			t.Error("a later one waits")
		}
		s.discard(1) // said again, on another stream
		s.seal()
		checkCounts(t, s, 1200, "", 1800+1<<20)
	})
}

func TestOutputIsCountedAsDiscardedAlsoWhenTheServerSaysSoAfterTheEnd(t *testing.T) {
	s := testSpool(t, 4096)
	_, _ = s.Write([]byte("0123456789"))
	s.seal()
	s.discard(4)
	checkCounts(t, s, 4, "", 6)
}

func TestTheRestOfAnEndedJobsOutputDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSpool(t, 2048)
		all := strings.Repeat("x", 1<<20)
		w := write(s, all)
		if !w.waits() {
			t.Fatal("it does not wait")
		}
		if s.release(); w.waits() {
			t.Error("it waits after the end of the job")
		}
		checkCounts(t, s, 0, all, 0)
		if write(s, strings.Repeat("x", 2<<20)).waits() {
			t.Error("more waits after the end of the job")
		}
		if size, discarded := s.counts(); size+discarded != 3<<20 || size > 2048+releasedRoom {
			t.Errorf("it holds %d bytes and discarded %d", size, discarded)
		}
	})
}

func TestAJobThatIsToEndIsHeldUpByItsOutputForAMomentOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSpool(t, 2048)
		w := write(s, strings.Repeat("a", 3000))
		time.Sleep(30 * time.Second)
		s.hurry()
		time.Sleep(hurriedPatience - 1)
		if !w.waits() {
			t.Error("output is discarded at once although it may be fetched")
		}
		if time.Sleep(time.Nanosecond); w.waits() {
			t.Error("it still waits")
		}
	})
}

func TestDiscardedOutputIsReportedAsItDoubles(t *testing.T) {
	reports := 0
	s := testSpool(t, 2048)
	s.grown = func() { reports++ }
	s.discard(0)
	reports = 0
	for range 1 << 12 {
		_, _ = s.Write(make([]byte, 100))
	}
	if reports < 10 || reports > 15 {
		t.Errorf("%d reports of 4096 discarded pieces, want one for each doubling", reports)
	}
}

func TestReadingFromASpoolBeginsWhereItStillHasOutput(t *testing.T) {
	s := testSpool(t, 4096)
	_, _ = s.Write([]byte("0123456789"))
	s.ack(4)
	s.ack(2)   // acknowledged before
	s.ack(100) // more than there is
	_, _ = s.Write([]byte("abc"))
	data, from := s.read(0, 100)
	if string(data) != "abc" || from != 10 {
		t.Errorf("got %q from %d, want abc from 10", data, from)
	}
	if data, _ := s.read(1000, 100); data != nil {
		t.Errorf("got %q from beyond the end", data)
	}
	s.seal()
	s.ack(13)
	if data, _ := s.read(0, 100); data != nil {
		t.Errorf("got %q after all was acknowledged", data)
	}
	s.ack(13)
}

func TestABucketLetsBurstsPassAndBoundsTheRate(t *testing.T) {
	b := bucket{perSecond: 10, burst: 5}
	at := time.Unix(1000, 0)
	for i := range 5 {
		if d := b.take(at, 1); d != 0 {
			t.Errorf("number %d of a burst waits %v", i, d)
		}
	}
	if d := b.take(at, 1); d != 100*time.Millisecond {
		t.Errorf("the one after the burst waits %v, want 100ms", d)
	}
	if d := b.take(at.Add(time.Hour), 5); d != 0 {
		t.Errorf("after a rest it waits %v", d)
	}
}

func TestMPIJobsAreStartedByMpirunWithTheirVariablesOnAllRanks(t *testing.T) {
	cfg := Config{File: memberconfig.File{
		Cluster: "c1", Member: "c1-0", Hostfile: "/etc/nearmetal/hostfile", Env: map[string]string{"NEARMETAL_CLUSTER": "c1"},
		User: memberconfig.User{Name: "hpc", Home: "/home/hpc", Shell: "/bin/bash"},
	}}
	job := api.Job{ID: "j1", Attempt: 2, JobRequest: api.JobRequest{
		Command: []string{"./a.out", "-n", "1"}, Ranks: 4, Env: map[string]string{"B": "2", "A": "1", "OMPI_MCA_btl": "tcp,self", "NEARMETAL_JOB_ID": "forged", "NEARMETAL_JOB_ATTEMPT": "9"},
	}}
	wantArgs := []string{
		"mpirun", "-n", "4", "--hostfile", "/etc/nearmetal/hostfile", "-x", "NEARMETAL_JOB_ID",
		"-x", "NEARMETAL_JOB_ATTEMPT", "-x", "A", "-x", "B", "./a.out", "-n", "1",
	}
	if diff := cmp.Diff(wantArgs, jobArgs(cfg, job)); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	wantEnv := []string{
		"A=1", "B=2", "HOME=/home/hpc", "LANG=C.UTF-8", "LOGNAME=hpc", "NEARMETAL_CLUSTER=c1", "NEARMETAL_JOB_ATTEMPT=2",
		"NEARMETAL_JOB_ID=j1", "NEARMETAL_MEMBER=c1-0", "OMPI_MCA_btl=tcp,self", "OMPI_MCA_ess_base_forward_signals=SIGURG",
		"PATH=/usr/local/bin:/usr/bin:/bin", "PRTE_MCA_ess_base_forward_signals=SIGURG", "SHELL=/bin/bash", "USER=hpc",
	}
	if diff := cmp.Diff(wantEnv, environ(jobEnv(cfg, job))); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for _, name := range []string{"USR1", "TERM", "NONSENSE"} {
		job.FailureSignal = name
		if got, ok := jobEnv(cfg, job)["OMPI_MCA_ess_base_forward_signals"]; ok {
			t.Errorf("failure signal %s: mpirun is asked to pass on %s, which it does anyway or refuses", name, got)
		}
	}
	job.Ranks = 0
	if diff := cmp.Diff(job.Command, jobArgs(cfg, job)); diff != "" {
		t.Errorf("arguments without ranks (-want +got):\n%s", diff)
	}
}

func TestAJobThatWasGivenIsRememberedAndATornLineIsNot(t *testing.T) {
	path := t.TempDir() + "/jobs.given"
	claim := func(id, instance, want string) {
		t.Helper()
		g, err := openGivenJobs(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = g.Close() }()
		if owner, err := g.claim(id, instance); owner != want || err != nil {
			t.Errorf("claiming %s for %s gives it to %q (%v), want %q", id, instance, owner, err, want)
		}
	}
	claim("j1", "i1", "i1")
	claim("j1", "i2", "i1")
	claim("j1", "i1", "i1")
	file, err := openGivenJobs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.file.WriteString("j2 i"); err != nil { // a crash in the middle of the line
		t.Fatal(err)
	}
	_ = file.Close()
	claim("j2", "i2", "i2")
	claim("j2", "i3", "i2")
	claim("j1", "i3", "i1")
}
