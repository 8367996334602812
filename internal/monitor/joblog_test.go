package monitor

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
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
		got, err := l.append(piece.offset, []byte(piece.data))
		if err != nil || got != piece.want {
			t.Fatalf("append(%d, %q) = %d, %v; want %d", piece.offset, piece.data, got, err, piece.want)
		}
	}
	text, err := os.ReadFile(l.path)
	if err != nil || string(text) != "hello world\n" {
		t.Fatalf("stored %q, %v; want %q", text, err, "hello world\n")
	}
}

func TestLostOutputIsToldAndOffsetsStay(t *testing.T) {
	m := newTest(t)
	l := m.log("j1")
	if got, err := l.append(100, []byte("end")); err != nil || got != 103 {
		t.Fatalf("got %d, %v; want 103", got, err)
	}
	text, _ := os.ReadFile(l.path)
	if !strings.HasPrefix(string(text), "[100 bytes of output were lost]\n") || !strings.HasSuffix(string(text), "end") {
		t.Fatalf("stored %q", text)
	}
}

func TestAPieceFarBeyondTheLimitIsRefused(t *testing.T) {
	m := newTest(t)
	if _, err := m.log("j1").append(1<<60, []byte("x")); err == nil {
		t.Fatal("want an error: a tenant could fill the disk's address space")
	}
	if got := m.log("j1").size(); got != 0 {
		t.Fatalf("stored %d bytes; want none", got)
	}
}

func TestOutputBeyondTheLimitIsDroppedAndSaid(t *testing.T) {
	m := newTest(t)
	l := m.log("j1")
	if err := os.WriteFile(l.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(l.path, maxLogBytes-2); err != nil {
		t.Fatal(err)
	}
	end, err := l.append(maxLogBytes-2, []byte("abcd"))
	if err != nil || end != maxLogBytes+2 {
		t.Fatalf("got %d, %v; want the piece acknowledged whole", end, err)
	}
	p := make([]byte, 100)
	n, err := m.ReadLog("j1", p, maxLogBytes-2)
	if err != nil || string(p[:n]) != "ab\n[the output goes on; only its beginning is kept]\n" {
		t.Fatalf("got %q, %v", p[:n], err)
	}
}
