package vm

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// plugMemory asks the guest to take or to release memory until it has that of an assignment, and returns once it has.
func plugMemory(ctx context.Context, host *daemon, c *chassis, a *api.Assignment) error {
	wants, asked := c.plugged(a), time.Time{}
	for ends := time.Now().Add(guestPatience); ; {
		has, err := pluggedOf(ctx, host, a.ID)
		if err != nil || has.Bytes == wants && has.Requested == wants {
			return err
		}
		now := time.Now()
		if now.After(ends) {
			return fmt.Errorf("%w: it has %s of memory and not %s", errGuestKeeps, api.Bytes(c.BootBytes+has.Bytes), api.Bytes(a.MemoryBytes()))
		}
		if now.Sub(asked) > askAgain {
			asked = now
			if err := has.request(ctx, host, a.ID, wants); err != nil {
				return fmt.Errorf("asking its guest to have %s of memory: %w", api.Bytes(a.MemoryBytes()), err)
			}
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pluggedMemory is what a machine's memory device has given to its guest, and what it is to give.
type pluggedMemory struct {
	Name      string `json:"id"`
	Bytes     int64  `json:"size"`
	Requested int64  `json:"requested-size"`
}

// pluggedOf returns how much memory the guest has taken besides that of its boot.
func pluggedOf(ctx context.Context, host *daemon, id string) (pluggedMemory, error) {
	var devices []struct {
		Type string        `json:"type"`
		Data pluggedMemory `json:"data"`
	}
	if err := host.tell(ctx, id, command{Execute: "query-memory-devices"}, &devices); err != nil {
		return pluggedMemory{}, err
	}
	for _, d := range devices {
		if d.Type == "virtio-mem" {
			return d.Data, nil
		}
	}
	return pluggedMemory{}, fmt.Errorf("machine %s has no memory device", id)
}

// request asks the guest to have so much of the device's memory. A guest that met a page in use tries again after 50 s (Linux, virtio_mem), and at
// once when it is asked for another amount.
func (p pluggedMemory) request(ctx context.Context, host *daemon, id string, bytes int64) error {
	amounts := []int64{bytes}
	if p.Requested == bytes {
		amounts = []int64{p.Bytes, bytes}
	}
	for _, amount := range amounts {
		err := host.tell(ctx, id, command{"qom-set", map[string]any{"path": "/machine/peripheral/" + p.Name, "property": "requested-size", "value": amount}}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}
