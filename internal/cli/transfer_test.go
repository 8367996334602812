package cli

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
)

func TestATransferTellsHowFarAndHowFastItIs(t *testing.T) {
	now := time.Unix(0, 0)
	var said bytes.Buffer
	a := &app{Invocation: Invocation{Streams: config.Streams{Err: &said}, Now: func() time.Time { return now }}}
	p := a.progress()
	slow := readerFunc(func(data []byte) (int, error) { // 64 KiB a second
		now = now.Add(time.Duration(len(data)) * time.Second / (64 << 10))
		return len(data), nil
	})
	n, err := a.transfer(p, "sent", 8*transferStep).copy(io.Discard, io.LimitReader(slow, 8*transferStep))
	p.stop()
	if err != nil || n != 8*transferStep {
		t.Errorf("%d bytes, %v", n, err)
	}
	if want := "  12.0s  sent 768KiB of 2MiB (37%), 64KiB/s\n  24.0s  sent 1.5MiB of 2MiB (75%), 64KiB/s\n"; said.String() != want {
		t.Errorf("it said\n%swant\n%s", said.String(), want)
	}
}

type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(p []byte) (int, error) { return r(p) }
