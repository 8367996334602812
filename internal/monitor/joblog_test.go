package monitor

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func newTest(t *testing.T) *Monitor {
	t.Helper()
	return New(Config{LogDir: t.TempDir(), DeathTimer: 5 * time.Second, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
}

func TestOutputIsStoredOnceHoweverOftenItComes(t *testing.T) {
	m := newTest(t)
	l := m.log("j1")
	for _, piece := range []struct {
		offset int64
		data   string
		want   int64
	}{
		{0, "hello ", 6}, {0, "hello ", 6}, {3, "lo wor", 9}, {9, "ld\n", 12}, {2, "x", 12},
	} {
		ack, rest, err := l.append(piece.offset, []byte(piece.data))
		if want := (agentstream.LogAck{JobID: "j1", Offset: piece.want}); err != nil || rest != store || ack != want {
			t.Fatalf("append(%d, %q) = %+v, %v, %v; want %+v", piece.offset, piece.data, ack, rest, err, want)
		}
	}
	text, err := os.ReadFile(l.path)
	if err != nil || string(text) != "hello world\n" {
		t.Fatalf("stored %q, %v; want %q", text, err, "hello world\n")
	}
}

func TestLostOutputIsMarkedInTheLogAndOffsetsStay(t *testing.T) {
	m := newTest(t)
	l := m.log("j1")
	if ack, _, err := l.append(100, []byte("end")); err != nil || ack.Offset != 103 {
		t.Fatalf("got %+v, %v; want 103 bytes acknowledged", ack, err)
	}
	text, _ := os.ReadFile(l.path)
	if !strings.HasPrefix(string(text), "[100 bytes of output were lost]\n") || !strings.HasSuffix(string(text), "end") {
		t.Fatalf("stored %q", text)
	}
}

func TestAPieceFarBeyondTheLimitIsNotStored(t *testing.T) {
	l := newTest(t).log("j1")
	ack, rest, err := l.append(1<<60, []byte("x"))
	if err != nil || rest != discard || ack.Offset != 0 || l.size() != 0 {
		t.Fatalf("got %+v, %v, %v and %d bytes stored; want it discarded: a tenant could fill the disk's address space", ack, rest, err, l.size())
	}
}

func TestOutputIsStoredExactlyUpToTheLimitAndItsMemberDiscardsTheRest(t *testing.T) {
	m := newTest(t)
	m.room.limits.JobBytes = 10
	l := m.log("j1")
	for _, piece := range []struct {
		offset  int64
		data    string
		want    int64
		discard bool
	}{
		{0, "0123", 4, false}, {4, "456789", 10, false}, {10, "a", 10, true}, {8, "89ab", 10, true}, {40, "z", 10, true},
	} {
		ack, _, err := l.append(piece.offset, []byte(piece.data))
		if want := (agentstream.LogAck{JobID: "j1", Offset: piece.want, Discard: piece.discard}); err != nil || ack != want {
			t.Errorf("append(%d, %q) = %+v, %v; want %+v", piece.offset, piece.data, ack, err, want)
		}
	}
	if text, err := os.ReadFile(l.path); err != nil || string(text) != "0123456789" {
		t.Errorf("stored %q, %v; want the first 10 bytes and nothing else", text, err)
	}
	if ack := l.ack(); !ack.Discard || ack.Offset != 10 {
		t.Errorf("on the next stream: %+v, want the member to discard from 10", ack)
	}
}

func TestAPieceThatCrossesTheLimitIsStoredInPart(t *testing.T) {
	m := newTest(t)
	m.room.limits.JobBytes = 3
	l := m.log("j1")
	if ack, _, err := l.append(0, []byte("abcd")); err != nil || ack.Offset != 3 || !ack.Discard {
		t.Errorf("got %+v, %v; want 3 bytes stored and the rest discarded", ack, err)
	}
}

func TestOutputWaitsWhileTheDiskIsFullAndEndsWhereItsLimitIs(t *testing.T) {
	m := newTest(t)
	var full error
	m.room.limits.JobBytes, m.room.diskFull = 4, func() error { return full }
	l := m.log("j1")
	full = errors.New("the disk is full")
	if ack, rest, err := l.append(0, []byte("abc")); err != nil || rest != wait || ack.Offset != 0 || l.size() != 0 {
		t.Fatalf("on a full disk: %+v, %v, %v and %d bytes stored; want it to wait", ack, rest, err, l.size())
	}
	if _, room := l.look(); room {
		t.Error("output is asked for while the disk is full")
	}
	full = nil
	if _, room := l.look(); !room {
		t.Error("output is not asked for although there is room again")
	}
	if ack, rest, err := l.append(0, []byte("abcd")); err != nil || rest != store || ack.Offset != 4 {
		t.Fatalf("once there is room: %+v, %v, %v; want 4 bytes stored", ack, rest, err)
	}
	full = errors.New("the disk is full")
	if ack, rest, err := l.append(4, []byte("e")); err != nil || rest != discard || !ack.Discard {
		t.Errorf("beyond the limit on a full disk: %+v, %v, %v; want it discarded, since room would not help", ack, rest, err)
	}
}

func TestOutputBeyondItsEndIsEmpty(t *testing.T) {
	m := newTest(t)
	if err := os.MkdirAll(m.cfg.LogDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.log("j1").path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 64<<10)
	for _, offset := range []int64{3, 4, math.MaxInt64 - 1, math.MaxInt64} {
		if n, err := m.ReadLog("j1", p, offset); n != 0 || err != nil {
			t.Errorf("from offset %d: %d bytes, %v; want none and no error", offset, n, err)
		}
	}
	if n, err := m.ReadLog("j1", p, 1); string(p[:n]) != "bc" || err != nil {
		t.Errorf("from offset 1: %q, %v", p[:n], err)
	}
}
