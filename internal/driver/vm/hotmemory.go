package vm

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// plugMemory asks the guest to take or to release memory until it has that of an assignment, and returns once it has.
func plugMemory(ctx context.Context, host *daemon, c *chassis, a *api.Assignment) error {
	wants := c.plugged(a)
	has, err := pluggedOf(ctx, host, a.ID)
	if err != nil || has.Bytes == wants && has.Requested == wants {
		return err
	}
	err = host.tell(ctx, a.ID, command{Execute: "qom-set", Arguments: map[string]any{
		"path": "/machine/peripheral/" + has.Name, "property": "requested-size", "value": wants,
	}}, nil)
	if err != nil {
		return fmt.Errorf("asking its guest to have %s of memory: %w", api.Bytes(a.MemoryBytes()), err)
	}
	for ends := time.Now().Add(guestPatience); ; {
		if has, err = pluggedOf(ctx, host, a.ID); err != nil || has.Bytes == wants {
			return err
		}
		if time.Now().After(ends) {
			return fmt.Errorf("%w: it has %s of memory and not %s", errGuestKeeps, api.Bytes(c.BootBytes+has.Bytes), api.Bytes(a.MemoryBytes()))
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
