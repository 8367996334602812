package diskserver

import (
	"context"

	"golang.org/x/time/rate"

	"github.com/nearmetal/nearmetal/internal/nbd"
)

// burstBytes is how much is read or written at once, at least: a limit is met over many requests, not by each.
const burstBytes = 256 << 10

// limits bound what is read of a disk and what is written to it, whichever client it has; nil: nothing does.
type limits struct{ read, write *rate.Limiter }

// newLimits are of so many bytes per second each; 0: none.
func newLimits(bytesPerSecond int64) *limits {
	if bytesPerSecond == 0 {
		return nil
	}
	limiter := func() *rate.Limiter {
		return rate.NewLimiter(rate.Limit(bytesPerSecond), max(burstBytes, int(bytesPerSecond/16)))
	}
	return &limits{limiter(), limiter()}
}

// of returns a device that is held to the limits, for a client that ends with ctx: what waits then is not done.
func (l *limits) of(ctx context.Context, device nbd.Device) nbd.Device {
	if l == nil {
		return device
	}
	return limited{device, ctx, l}
}

type limited struct {
	nbd.Device
	ctx context.Context //nolint:containedctx // it is that of one connection, as the device is
	*limits
}

func (l limited) ReadAt(p []byte, at int64) (int, error) {
	if err := await(l.ctx, l.read, len(p)); err != nil {
		return 0, err
	}
	return l.Device.ReadAt(p, at)
}

func (l limited) WriteAt(p []byte, at int64) (int, error) {
	if err := await(l.ctx, l.write, len(p)); err != nil {
		return 0, err
	}
	return l.Device.WriteAt(p, at)
}

// await returns once so many bytes more keep within the limit.
func await(ctx context.Context, l *rate.Limiter, bytes int) error {
	for bytes > 0 {
		n := min(bytes, l.Burst())
		if err := l.WaitN(ctx, n); err != nil {
			return err
		}
		bytes -= n
	}
	return nil
}
