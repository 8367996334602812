package agentstream

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/store"
)

// ends are both ends of a stream, which goes through memory.
func ends() (*ServerConn, *ClientConn, *bytes.Buffer) {
	var down, up bytes.Buffer
	server := &ServerConn{
		conn:    conn{out: &down, in: bufio.NewReader(&up)},
		desired: outgoing[desiredParts]{lists: desiredLists()}, observed: newIncoming(observedLists()),
	}
	client := &ClientConn{
		conn:    conn{out: &up, in: bufio.NewReader(&down)},
		desired: newIncoming(desiredLists()), observed: outgoing[Observed]{lists: observedLists()},
	}
	return server, client, &down
}

// crowded is a desired state of a node with a cluster of so many members, each with a file of its own and one that names all members.
func crowded(members int) *Desired {
	var names strings.Builder
	for i := range members {
		fmt.Fprintf(&names, "10.64.%d.%d\tc1-%d\nc1-%d slots=1 u1.c1-%d.1\n", i/256, i%256, i, i, i)
	}
	shared := []byte(strings.Repeat(names.String(), 2))
	d := &Desired{Term: 1, Revision: 2, Networks: []fabric.Network{{Network: api.Network{Index: 3}}}}
	for i := range members {
		d.Members = append(d.Members, Member{Member: driver.Member{
			Assignment: api.Assignment{ID: fmt.Sprintf("u1.c1-%04d.1", i)}, Files: []driver.File{
				{Path: "/etc/hostname", Content: fmt.Appendf(nil, "c1-%d\n", i), Mode: 0o644},
				{Path: "/etc/hosts", Content: shared, Mode: 0o644},
				{Path: "/etc/empty", Mode: 0o600, OwnedByUser: true},
			},
		}})
	}
	return d
}

// alike makes comparing quick where a thousand members share a file.
func alike() cmp.Option {
	sameFile := func(a, b driver.File) bool {
		return a.Path == b.Path && bytes.Equal(a.Content, b.Content) && a.Mode == b.Mode && a.OwnedByUser == b.OwnedByUser
	}
	return cmp.Options{cmp.Comparer(sameFile), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}
}

// exchange sends a desired state and returns what arrives, and the messages it took.
func exchange(t *testing.T, server *ServerConn, client *ClientConn, down *bytes.Buffer, d *Desired) (*Desired, []string) {
	t.Helper()
	if err := server.Send(Down{Desired: d}); err != nil {
		t.Fatal(err)
	}
	messages := strings.Split(strings.TrimSuffix(down.String(), "\n"), "\n")
	got, err := client.Receive()
	if err != nil || got.Desired == nil {
		t.Fatalf("got %+v, %v; want a desired state", got, err)
	}
	return got.Desired, messages
}

func TestAStateOfAnySizeGoesInBoundedMessages(t *testing.T) {
	server, client, down := ends()
	want := crowded(1000)
	for i := range 330 {
		want.Jobs = append(want.Jobs, Job{Job: api.Job{
			ID: fmt.Sprintf("j%03d", i), JobRequest: api.JobRequest{Command: []string{strings.Repeat("<", 40_000)}},
		}})
	}
	got, messages := exchange(t, server, client, down, want)
	if diff := cmp.Diff(want, got, alike()); diff != "" {
		t.Errorf("what arrives differs (-sent +arrived):\n%.2000s", diff)
	}
	total, longest := 0, 0
	for _, m := range messages {
		total, longest = total+len(m), max(longest, len(m))
	}
	t.Logf("%d messages, %d bytes in all, the longest %d", len(messages), total, longest)
	if longest > 2*pieceBytes {
		t.Errorf("a message is %d bytes long, want pieces of about %d", longest, pieceBytes)
	}
	if total > 20<<20 {
		t.Errorf("%d bytes are sent; the jobs are 13.2 MB, and what the members share goes once", total)
	}
}

func TestOnlyWhatHasChangedIsSentAgain(t *testing.T) {
	server, client, down := ends()
	exchange(t, server, client, down, crowded(300))
	for _, step := range []struct {
		name   string
		change func(*Desired)
		most   int
	}{
		{"nothing but the revision", func(*Desired) {}, 100},
		{"one member is paused", func(d *Desired) { d.Members[7].Paused = true }, 2000},
		{"one member is gone", func(d *Desired) { d.Members = d.Members[1:] }, 2000},
		{"a job comes", func(d *Desired) { d.Jobs = []Job{{Job: api.Job{ID: "j1"}, MemberID: "m"}} }, 2000},
		{"the job goes, the order to power off comes", func(d *Desired) { d.PowerOff = &PowerOff{BootGeneration: 4} }, 2000},
	} {
		next := crowded(300)
		next.Revision++
		step.change(next)
		got, messages := exchange(t, server, client, down, next)
		if diff := cmp.Diff(next, got, alike()); diff != "" {
			t.Errorf("%s: what arrives differs (-sent +arrived):\n%.2000s", step.name, diff)
		}
		if n := len(strings.Join(messages, "\n")); n > step.most {
			t.Errorf("%s: %d bytes are sent, want at most %d", step.name, n, step.most)
		}
	}
}

func TestOtherMessagesPassBetweenThePiecesOfAState(t *testing.T) {
	server, client, _ := ends()
	pings := int64(0)
	want := crowded(300)
	for _, id := range []string{"a", "b"} {
		want.Jobs = append(want.Jobs, Job{Job: api.Job{ID: id, JobRequest: api.JobRequest{Command: []string{strings.Repeat("x", pieceBytes)}}}})
	}
	if err := server.SendDesired(want, func() error {
		pings++
		return server.Send(Down{Ping: &Ping{Seq: pings}})
	}); err != nil {
		t.Fatal(err)
	}
	if pings < 3 {
		t.Fatalf("the state went in %d pieces, want more", pings)
	}
	for seq := int64(1); seq < pings; seq++ {
		if got, err := client.Receive(); err != nil || got.Ping == nil || got.Ping.Seq != seq {
			t.Fatalf("got %+v, %v; want ping %d", got, err, seq)
		}
	}
	if got, err := client.Receive(); err != nil || got.Desired == nil || len(got.Desired.Members) != 300 {
		t.Fatalf("got %+v, %v; want the state of 300 members", got, err)
	}
}

func TestAnElementAsLargeAsACommitStoresIsSent(t *testing.T) {
	server, client, down := ends()
	large := strings.Repeat("\x01", store.MaxBytes/len(`\u0001`))
	got, messages := exchange(t, server, client, down, &Desired{Jobs: []Job{
		{Job: api.Job{ID: "a", JobRequest: api.JobRequest{Command: []string{large}}}}, {Job: api.Job{ID: "b"}},
	}})
	if len(got.Jobs) != 2 || got.Jobs[0].Command[0] != large {
		t.Errorf("got %d jobs, want both as they were", len(got.Jobs))
	}
	for _, m := range messages {
		if len(m) > maxMessageBytes/2 {
			t.Errorf("a message of %d bytes comes near the bound of %d", len(m), maxMessageBytes)
		}
	}
}

func TestAFileLargerThanAMessageArrivesWhole(t *testing.T) {
	server, client, down := ends()
	want := crowded(2)
	for i := range want.Members {
		large := bytes.Repeat(fmt.Appendf(nil, "%07d\n", i), maxMessageBytes/8+1)
		want.Members[i].Files = append(want.Members[i].Files, driver.File{Path: "/etc/large", Content: large, Mode: 0o644})
	}
	got, _ := exchange(t, server, client, down, want)
	if diff := cmp.Diff(want, got, alike()); diff != "" {
		t.Errorf("what arrives differs (-sent +arrived):\n%.2000s", diff)
	}
}

func TestAFileThatIsNoTextArrivesAsItIs(t *testing.T) {
	server, client, down := ends()
	want := crowded(2)
	want.Members[0].Files = append(want.Members[0].Files, driver.File{Path: "/etc/key", Content: []byte{0xff, 0, 0xfe}, Mode: 0o600})
	got, _ := exchange(t, server, client, down, want)
	if diff := cmp.Diff(want, got, alike()); diff != "" {
		t.Errorf("what arrives differs (-sent +arrived):\n%.2000s", diff)
	}
}

func TestAnObservationArrivesAsItWasSent(t *testing.T) {
	server, client, _ := ends()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, want := range []*Observed{
		{
			Term: 7, Members: []MemberObserved{{ID: "a", Message: "m"}, {ID: "b"}}, Clean: []string{"c"}, PeerURL: "http://peer",
			Jobs:   []JobObserved{{ID: "j", StartedAt: &at}},
			Builds: []BuildObserved{{ID: "x", Attempt: 1}, {ID: "x", Attempt: 2}}, Drift: []string{"d"}, Images: []ImageObserved{{Digest: "i"}},
		},
		{Term: 8, Members: []MemberObserved{{ID: "b", Message: "n"}}, PowerOffProblem: "p", CacheRoom: &dataset.CacheRoom{Bytes: 9, BlockBytes: 8, Prefetch: 7}},
	} {
		if err := client.Send(Up{Observed: want}); err != nil {
			t.Fatal(err)
		}
		got, err := server.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Observed, alike()); diff != "" {
			t.Errorf("what arrives differs (-sent +arrived):\n%s", diff)
		}
	}
}

func TestAnAgentThatDescribesWithoutEndIsCutOff(t *testing.T) {
	server, client, _ := ends()
	server.observed.mostBytes = 1300
	say := func(members ...MemberObserved) error {
		t.Helper()
		if err := client.Send(Up{Observed: &Observed{Members: members}}); err != nil {
			t.Fatal(err)
		}
		_, err := server.Receive()
		return err
	}
	text := strings.Repeat("m", 500)
	for range 3 { // each in place of the other: what is new comes before what is old goes
		if err := say(MemberObserved{ID: "a", Message: text}); err != nil {
			t.Errorf("one member: %v", err)
		}
		if err := say(MemberObserved{ID: "b", Message: text}); err != nil {
			t.Errorf("another in its place: %v", err)
		}
	}
	if err := say(MemberObserved{ID: "b", Message: text}, MemberObserved{ID: "c", Message: text}, MemberObserved{ID: "d", Message: text}); err == nil {
		t.Error("more than is kept is taken")
	}
	for _, c := range []struct {
		name      string
		keyBytes  int
		mostBytes int
		most      int
	}{
		{"long keys", 1000, 1 << 20, 1 << 20 / 1000},
		{"many small things", 1, maxHeldBytes, maxHeldItems},
	} {
		in := newIncoming(observedLists())
		in.mostBytes = c.mostBytes
		taken := 0
		for taken <= c.most && in.take(piece{Items: []item{{List: "clean", Key: fmt.Sprintf("%*d", c.keyBytes, taken), Value: []byte(`""`)}}}) == nil {
			taken++
		}
		if taken > c.most || taken < c.most-10 {
			t.Errorf("%s: %d are taken, want at most %d", c.name, taken, c.most)
		}
	}
}

func TestAMessageThatIsTooLongIsNeitherSentNorRead(t *testing.T) {
	server, client, down := ends()
	long := strings.Repeat("x", maxMessageBytes)
	if err := server.Send(Down{Refused: long}); err == nil || !strings.Contains(err.Error(), "are allowed") {
		t.Errorf("sent: %v, want an error", err)
	}
	fmt.Fprintf(down, "{\"refused\":%q}\n", long)
	if _, err := client.Receive(); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("received: %v, want an error", err)
	}
}
