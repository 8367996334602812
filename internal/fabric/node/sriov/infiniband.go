package sriov

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Functions of mlx4 adapters (ConnectX-3) on InfiniBand share the port of the adapter: each has an alias GUID of the port, and a table that maps its
// partition keys to those of the port. Both are files of the physical function, made by the driver mlx4_ib (linux/drivers/infiniband/hw/mlx4/sysfs.c):
//
//	iov/ports/1/admin_guids/SLAVE           the requested alias GUID; 0: the subnet manager chooses; all ones: none
//	iov/ports/1/gids/SLAVE                  the GID in force
//	iov/ports/1/pkeys/N                     the port's own table
//	iov/BUS:SLAVE/8.SLAVE%8/ports/1/pkey_idx/N   the index in the port's table, or none
//
// SLAVE is the index of the virtual function and 1: 0 is the physical function.

const (
	deletedGUID = "ffffffffffffffff"
	noIndex     = "none"
	// fullMember is the membership bit of a partition key (InfiniBand Architecture Specification 1.2.1, 10.9.1.1).
	fullMember = 0x8000
)

// alias gives the function of an mlx4 adapter its GUID and its partition, or neither.
func (o *operation) alias(ctx context.Context, s fabric.FunctionSettings) error {
	if o.adapter.RDMA == "" {
		return fmt.Errorf("adapter %s has no RDMA device, by which its functions are set up; load mlx4_ib", o.pf)
	}
	// The table first where the function loses its partition, and last where it gets one: at no time does it have a GUID with another's key.
	if s.PKey == 0 {
		if err := o.mapPKeys(ctx, 0, false); err != nil {
			return err
		}
		return o.setAlias(ctx, "")
	}
	want, got, err := o.aliasDifference(s)
	if err != nil || want == got {
		return err
	}
	if err := o.mapPKeys(ctx, 0, false); err != nil {
		return err
	}
	if err := o.noManagement(ctx); err != nil {
		return err
	}
	if err := o.setAlias(ctx, s.GUID); err != nil {
		return err
	}
	return o.mapPKeys(ctx, s.PKey, s.Limited)
}

func (o *operation) iov(name string) string { return rdmaClass + o.adapter.RDMA + "/iov/" + name }

func (o *operation) slave() int { return o.index + 1 }

// own is the folder of the function's tables.
func (o *operation) own(name string) string {
	const bus = len("0000:3b:")
	return o.iov(fmt.Sprintf("%s%02d.%d/ports/1/%s", o.pf[:bus], o.slave()/8, o.slave()%8, name))
}

func (o *operation) setAlias(ctx context.Context, guid string) error {
	file := o.iov("ports/1/admin_guids/" + strconv.Itoa(o.slave()))
	read := func() (string, error) {
		text, err := o.read(file)
		return aliasOf(text), err
	}
	now, err := read()
	if err != nil {
		return err
	}
	if now != guid {
		text := guid
		if guid == "" {
			text = deletedGUID
		}
		if err := o.write(file, "0x"+text); err != nil {
			return err
		}
		if err := o.m.settle(ctx, "the alias GUID of "+o.f.String(), guid, read); err != nil {
			return err
		}
	}
	return o.m.settle(ctx, "the GID in force of "+o.f.String()+", which the subnet manager grants,", guid, func() (string, error) {
		gid, err := o.read(o.iov("ports/1/gids/" + strconv.Itoa(o.slave())))
		return guidOf(gid), err
	})
}

// aliasOf returns a GUID as the driver writes it, without leading zeros, with all 16 digits; "" for none.
func aliasOf(text string) string {
	digits := hexadecimal(text)
	if n := len(zeroGUID) - len(digits); n > 0 {
		digits = zeroGUID[:n] + digits
	}
	if digits == deletedGUID {
		return ""
	}
	return nonZero(digits)
}

// noManagement takes care that the function can send no subnet management packets.
func (o *operation) noManagement(ctx context.Context) error {
	file := o.own("enable_smi_admin")
	if there, err := o.exists(file); err != nil || !there {
		return err
	}
	if text, err := o.read(file); err != nil || text == "0" {
		return err
	}
	if err := o.write(file, "0"); err != nil {
		return err
	}
	return o.m.settle(ctx, "the right to manage the subnet of "+o.f.String(), "0", func() (string, error) { return o.read(file) })
}

// mapPKeys gives the function one partition key, or none, at index 0 of its table.
func (o *operation) mapPKeys(ctx context.Context, pkey int, limited bool) error {
	entries, err := o.base(o.own("pkey_idx/*"))
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		if pkey == 0 && o.vf == nil {
			return nil // its tables went with it
		}
		return fmt.Errorf("%w: mlx4_ib shows no partition table of %s", fabric.ErrNoFunction, o.f)
	}
	for _, entry := range entries {
		want := noIndex
		if entry == "0" && pkey != 0 {
			if want, err = o.findPKey(ctx, pkey, limited); err != nil {
				return err
			}
		}
		file := o.own("pkey_idx/" + entry)
		now, err := o.read(file)
		if err != nil {
			return err
		}
		if now == want {
			continue
		}
		if err := o.write(file, want); err != nil {
			return err
		}
		what := fmt.Sprintf("entry %s of the partition table of %s", entry, o.f)
		if err := o.m.settle(ctx, what, want, func() (string, error) { return o.read(file) }); err != nil {
			return err
		}
	}
	return nil
}

// findPKey waits until the subnet manager has given the port a partition key, and returns its index in the port's table.
func (o *operation) findPKey(ctx context.Context, pkey int, limited bool) (string, error) {
	if !limited {
		pkey |= fullMember
	}
	var index string
	want := fmt.Sprintf("0x%04x", pkey)
	err := o.m.settle(ctx, fmt.Sprintf("the partition table of port 1 of %s", o.adapter.RDMA), want, func() (string, error) {
		found, err := o.base(o.iov("ports/1/pkeys/*"))
		if err != nil {
			return "", err
		}
		for _, index = range found {
			if text, err := o.read(o.iov("ports/1/pkeys/" + index)); err == nil && strings.EqualFold(text, want) {
				return want, nil
			}
		}
		return "without it", nil
	})
	return index, err
}

// mapped returns the partition keys that the function of an mlx4 adapter has.
func (o *operation) mapped() (keys []int, err error) {
	entries, err := o.base(o.own("pkey_idx/*"))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		index, err := o.read(o.own("pkey_idx/" + entry))
		if err != nil {
			return nil, err
		}
		if index == noIndex {
			continue
		}
		text, err := o.read(o.iov("ports/1/pkeys/" + index))
		if err != nil {
			return nil, err
		}
		key, err := strconv.ParseUint(hexadecimal(text), 16, 16)
		if err != nil {
			return nil, fmt.Errorf("the port's table of adapter %s has %q at %s", o.pf, text, index)
		}
		keys = append(keys, int(key))
	}
	return keys, nil
}
