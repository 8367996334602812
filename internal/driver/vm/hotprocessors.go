package vm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Processors are plugged by QEMU's own protocol, as memory is. libvirt would wait for an event by which QEMU announces that a processor has gone, and
// QEMU 7.2 lacks it where it emulates processors. A libvirtd that starts looks at the machine again.

// askAgain is the pause between requests to a guest to release a processor. A guest refuses one that it is about to bring online.
const askAgain = time.Second

// plugProcessors gives a machine so many processors, or has the guest release those beyond, and returns once the machine has exactly these.
func (d *Driver) plugProcessors(ctx context.Context, host *daemon, r *record, wants int) error {
	id, asked := r.Member.Assignment.ID, time.Time{}
	for ends := time.Now().Add(guestPatience); ; {
		places, err := placesOf(ctx, host, id)
		if err != nil {
			return err
		}
		has := places.taken()
		if has == wants {
			return nil
		}
		now := time.Now()
		if has > wants && now.After(ends) {
			return fmt.Errorf("%w: it keeps %d processors", errGuestKeeps, has)
		}
		if has < wants || now.Sub(asked) > askAgain {
			if err := d.countThreads(r, has, wants); err != nil {
				return err
			}
			asked = now
			for _, c := range places.commands(wants) {
				if err := host.tell(ctx, id, c, nil); err != nil && has < wants {
					return err
				}
			}
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errThreads reports that QEMU can't run another processor. An emulating QEMU keeps the data of a processor that has gone, and aborts when it has run more
// than the machine has places for (tcg_register_thread).
var errThreads = errors.New("an emulated machine takes no processor again that it gave back, until it reboots")

// errGaveBack reports that a machine's state can't leave QEMU: an emulating one waits forever for a processor that has gone (do_run_on_cpu).
var errGaveBack = errors.New("an emulated machine that gave a processor back can't be saved or moved; reboot the member first")

// countThreads notes how many processors an emulating QEMU will have run, so that also a later agent asks neither for too many nor for its state.
func (d *Driver) countThreads(r *record, has, wants int) error {
	if d.cfg.Accelerate() == nil {
		return nil
	}
	threads := max(r.Threads, has) + max(0, wants-has)
	if threads > r.chassis().Processors {
		return errThreads
	}
	r.Threads = threads
	return d.writeRecord(r.Member.Assignment.ID, *r)
}

// place is where a machine has a processor or could have one, as QEMU lists it (query-hotpluggable-cpus).
type place struct {
	Type  string         `json:"type"`
	Where map[string]any `json:"props"`
	// Processor is the path of the processor there, "" where there is none.
	Processor string `json:"qom-path"`
}

type places []place

// number returns which of the guest's processors belongs to a place: machines that can grow have one socket, whose cores are counted.
func (p place) number() int {
	core, _ := p.Where["core-id"].(float64)
	return int(core)
}

func (all places) taken() (n int) {
	for _, p := range all {
		if p.Processor != "" {
			n++
		}
	}
	return n
}

// commands give a machine its first processors, so many of them, and ask the guest to release the others.
func (all places) commands(wants int) (list []command) {
	for _, p := range all {
		id := fmt.Sprint("vcpu", p.number()) // as libvirt names them
		switch taken := p.Processor != ""; {
		case !taken && p.number() < wants:
			arguments := map[string]any{"driver": p.Type, "id": id}
			for name, value := range p.Where {
				arguments[name] = value
			}
			list = append(list, command{"device_add", arguments})
		case taken && p.number() >= wants:
			list = append(list, command{"device_del", map[string]any{"id": id}})
		}
	}
	return list
}

func placesOf(ctx context.Context, host *daemon, id string) (all places, err error) {
	return all, host.tell(ctx, id, command{Execute: "query-hotpluggable-cpus"}, &all)
}
