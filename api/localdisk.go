package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// DiskKind is a kind of a machine's disks.
type DiskKind string

// The kinds. A disk on NVMe is an SSD, too. Disks on USB are of no kind.
const (
	DiskNVMe DiskKind = "nvme"
	DiskSSD  DiskKind = "ssd" // without moving parts, on whatever bus
	DiskHDD  DiskKind = "hdd"
)

// DiskRequest asks for disks of a whole machine, COUNT:SIZE or COUNT:SIZE:KIND, as in "2:500GB:nvme": so many disks of at least that size each.
type DiskRequest string

// DiskPattern is the form of a DiskRequest, also for JSON Schema.
const DiskPattern = `^[0-9]{1,2}:[0-9]+(\.[0-9]+)?([KMGT]iB|[kMGT]?B)?(:(nvme|ssd|hdd))?$`

// MachineDisks is a DiskRequest that was read. Kind "" is any.
type MachineDisks struct {
	Count int
	Size  Bytes
	Kind  DiskKind
}

// Parse reads a request. The error says what is wrong with it.
func (r DiskRequest) Parse() (MachineDisks, error) {
	parts := strings.Split(string(r), ":")
	if len(parts) < 2 || len(parts) > 3 {
		return MachineDisks{}, errors.New("write COUNT:SIZE or COUNT:SIZE:KIND, such as 2:500GB:nvme")
	}
	var d MachineDisks
	var err error
	if d.Count, err = strconv.Atoi(parts[0]); err != nil || d.Count < 1 || d.Count > 99 {
		return MachineDisks{}, fmt.Errorf("the number of disks %q is not between 1 and 99", parts[0])
	}
	if d.Size, err = ParseBytes(parts[1]); err != nil {
		return MachineDisks{}, err
	}
	if len(parts) == 3 {
		switch d.Kind = DiskKind(parts[2]); d.Kind {
		case DiskNVMe, DiskSSD, DiskHDD:
		default:
			return MachineDisks{}, fmt.Errorf("%q is no kind of disk; the kinds are nvme, ssd and hdd", parts[2])
		}
	}
	return d, nil
}

// Is reports whether a disk is of a kind and at least of a size.
func (d *Disk) Is(kind DiskKind, size Bytes) bool {
	if d.SizeBytes < int64(size) || d.Transport == "usb" {
		return false
	}
	switch kind {
	case "":
		return true
	case DiskNVMe:
		return d.Transport == "nvme"
	case DiskSSD:
		return !d.Rotational
	default:
		return d.Rotational
	}
}
