package vm

import (
	"net"
	"strings"
	"testing"
)

// ends are both ends of a move's connection.
func ends(t *testing.T) (near, far wire) {
	t.Helper()
	one, other := net.Pipe()
	t.Cleanup(func() { one.Close(); other.Close() })
	return wire{one}, wire{other}
}

func TestTheStateOfAMoveArrivesWholeAndEndsWithItsWord(t *testing.T) {
	near, far := ends(t)
	want := strings.Repeat("memory", maxFrame/2)
	sent := make(chan error, 1)
	go func() {
		_, err := near.Write([]byte(want))
		if err == nil {
			err = near.say(message{Word: wordEnd})
		}
		sent <- err
	}()
	var got strings.Builder
	if err := far.state(&got); err != nil || got.String() != want {
		t.Errorf("got %d bytes of %d, %v", got.Len(), len(want), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestAMoveBelievesNothingButTheWordThatIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		send func(w wire)
		want string
	}{
		"another word":     {func(w wire) { _ = w.say(message{Word: wordRuns}) }, `says "runs" where it should say "go"`},
		"state":            {func(w wire) { _, _ = w.Write([]byte("x")) }, `sends state where it should say "go"`},
		"a reason to stop": {func(w wire) { w.sorry(errNoShape) }, "gives up: \"an earlier version"},
		"no word at all":   {func(w wire) { _ = w.frame(frameWord, []byte("x")) }, "no word"},
		"too much":         {func(w wire) { _ = w.frame(frameWord, make([]byte, maxFrame+1)) }, "a frame of 1048577 bytes"},
		"an end":           {func(w wire) { _ = w.conn.Close() }, "has hung up"},
		"half a frame":     {func(w wire) { _, _ = w.conn.Write([]byte{frameWord, 0, 0}); _ = w.conn.Close() }, "has hung up"},
	} {
		near, far := ends(t)
		go c.send(near)
		if _, err := far.hear(wordGo); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		_ = far.conn.Close()
	}
}
