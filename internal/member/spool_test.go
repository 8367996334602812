package member

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

func testSpool(t *testing.T, limit int64) *spool {
	t.Helper()
	s, err := newSpool(limit, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return s
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

func TestASpoolSaysWhereItThrewOutputAwayAndGoesOnWhenThereIsRoom(t *testing.T) {
	s := testSpool(t, 2048)
	write := func(text string) { _, _ = s.Write([]byte(text)) }
	write(strings.Repeat("a", 1000))
	write(strings.Repeat("b", 1000)) // 792 of them fit below 2048 less the room for the note
	write(strings.Repeat("c", 500))  // thrown away as well: what comes after a gap must not look as if it were before
	s.ack(1500)
	write("d\n")
	s.seal()
	want := strings.Repeat("b", 292) + "\n[nearmetal: 708 bytes of output are missing here, nobody fetched it in time]\nd\n"
	got := s.all(1500)
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s.size() != 1500+int64(len(got)) {
		t.Errorf("its size is %d, want offsets without a gap up to %d", s.size(), 1500+len(got))
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
