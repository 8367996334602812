// Package plan decides how each part of a machine is cleaned, from what the machine's kernel shows of it.
//
// It computes and touches nothing; package cleaning carries its plans out. A plan names every block device there is: those that are cleaned, with
// the methods in their order, and those that are left alone, with the reason. Start with Disks.
package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Method is a way to erase a disk, in the words in which it is reported.
type Method string

// The methods, the best first. The first five are carried out by the disk itself and reach blocks that no address leads to.
const (
	SanitizeCrypto Method = "NVMe sanitize, crypto erase"
	SanitizeBlock  Method = "NVMe sanitize, block erase"
	FormatCrypto   Method = "NVMe format, crypto erase"
	FormatErase    Method = "NVMe format, user data erase"
	ATAEnhanced    Method = "ATA secure erase, enhanced"
	ATAErase       Method = "ATA secure erase"
	SecureDiscard  Method = "secure discard"
	Discard        Method = "discard"
	ZeroOut        Method = "overwrite with zeroes, by the kernel"
	WriteZeroes    Method = "overwrite with zeroes"
)

// Expectation is what must be read back after a method.
type Expectation int

const (
	// Zeroes: each sample holds zeroes only.
	Zeroes Expectation = iota
	// ZeroesEverywhere: the whole disk does. A discard is advice, so a disk may follow it for some blocks and not for others.
	ZeroesEverywhere
	// Changed: nothing is left of a pattern that was written into each sample before. A disk that erased its key returns noise.
	Changed
)

// Expect returns what must be read back after the method.
func (m Method) Expect() Expectation {
	switch m {
	case SanitizeCrypto, SanitizeBlock, FormatCrypto, FormatErase, ATAEnhanced, ATAErase:
		return Changed
	case SecureDiscard, Discard:
		return ZeroesEverywhere
	}
	return Zeroes
}

// Disk is a block device as the kernel shows it.
type Disk struct {
	// Name is that in /sys/block.
	Name, Model, Serial string
	Bytes               int64
	// BlockBytes is the size of its logical blocks.
	BlockBytes int
	// Transport is how it is attached, as in api.Disk.
	Transport string
	// Virtual: no device is behind it, such as loop, RAM, md and device-mapper devices.
	Virtual bool
	// Path: it is one path of a disk that is there as a whole, too.
	Path bool
	// SameAs is the name of another device that is the same disk.
	SameAs                        string
	Removable, ReadOnly, NotADisk bool
	Holders                       []string
	Discards, DiscardsMayBeSecure bool
	NVMe                          *NVMe
	ATA                           *ATA
	// Zoned: its zones can only be written in order. FirmwarePart: it is a part of an eMMC that firmware may start from.
	Zoned, FirmwarePart bool
	// Problem is why the disk could not be asked what it can do. Methods of its own are left out then.
	Problem string
}

// NVMe is what an NVMe controller says of itself and of a namespace.
type NVMe struct {
	Controller string
	Namespace  uint32
	// Remote: the controller is reached over a network.
	Remote bool
	// SanitizeCrypto and SanitizeBlock are of the field SANICAP, Format and FormatCrypto of OACS and FNA.
	SanitizeCrypto, SanitizeBlock, Format, FormatCrypto bool
	// Unattached are the namespaces that exist and are not attached to the controller, so that the kernel does not show them.
	Unattached []uint32
}

// ATA is what an ATA disk says of itself.
type ATA struct {
	// Security to Enhanced are bits of word 128 of IDENTIFY DEVICE.
	Security, Enabled, Locked, Frozen, Expired, Enhanced bool
	// Erase and EnhancedErase are how long the disk says that it takes; 0: it does not say.
	Erase, EnhancedErase time.Duration
	// Sectors can be reached, of Native in all; Native is 0 where the disk does not say.
	Sectors, Native int64
}

// Controller is a storage controller whose disks can't be seen, and why.
type Controller struct{ Name, Problem string }

// Step is what is to be done about one block device.
type Step struct {
	Disk Disk
	// Methods in the order in which they are tried.
	Methods []Method
	// LeftAlone is why nothing is done, Problem why the disk can't be cleaned.
	LeftAlone, Problem string
	// Notes are what is known beforehand of methods that are left out.
	Notes []string
}

// Group names what can't be worked on twice at once: an NVMe controller with all its namespaces, or a disk.
func (s Step) Group() string {
	if s.Disk.NVMe != nil {
		return s.Disk.NVMe.Controller
	}
	return s.Disk.Name
}

// Disks plans every block device.
func Disks(disks []Disk) []Step {
	steps := make([]Step, len(disks))
	for i, d := range disks {
		steps[i] = step(d)
	}
	return steps
}

func step(d Disk) Step {
	s := Step{Disk: d}
	switch {
	case d.Virtual:
		s.LeftAlone = "no device is behind it: it holds what RAM or another disk holds"
	case d.Path:
		s.LeftAlone = "one path to a disk that is there as a whole, too"
	case d.SameAs != "":
		s.LeftAlone = "another path to " + d.SameAs
	case d.NVMe != nil && d.NVMe.Remote, slices.Contains([]string{"fc", "iscsi"}, d.Transport):
		s.LeftAlone = "it is reached over a network, and may be others'"
	case d.NotADisk:
		s.LeftAlone = "no disk"
	case d.Removable:
		s.LeftAlone = "removable medium"
	case d.FirmwarePart:
		s.LeftAlone = "boot partition of an eMMC: the machine's firmware may be in it"
	case d.Bytes == 0:
		s.Problem = "it shows no blocks: it has failed, or a tenant has hidden them; take it out"
	case d.ReadOnly && d.Transport == "":
		s.LeftAlone = "read-only medium"
	case d.ReadOnly:
		s.Problem = "it is read-only: a worn-out disk becomes so, and can't be erased by its blocks; take it out"
	case len(d.Holders) > 0:
		s.Problem = fmt.Sprintf("held by %s: nothing may use a disk while it is cleaned", strings.Join(d.Holders, ", "))
	case d.ATA != nil && d.ATA.Native > d.ATA.Sectors:
		s.Problem = fmt.Sprintf("%d sectors are hidden in a host protected area: power the machine off and on, and clean it again; "+
			"if that does not help, take the disk out", d.ATA.Native-d.ATA.Sectors)
	case d.NVMe != nil && len(d.NVMe.Unattached) > 0:
		s.Problem = fmt.Sprintf("namespaces %v of %s are not attached, so they can't be erased: attach or delete them", d.NVMe.Unattached, d.NVMe.Controller)
	default:
		s.methods()
		if len(s.Methods) == 0 {
			s.Problem = "its zones can only be written in order, and it has no method of its own: take it out"
		}
	}
	return s
}

// methods finds the methods of a disk that is to be cleaned.
func (s *Step) methods() {
	d := s.Disk
	if d.Problem != "" {
		s.Notes = append(s.Notes, "the disk's own methods are left out: "+d.Problem)
	}
	add := func(has bool, m Method) {
		if has {
			s.Methods = append(s.Methods, m)
		}
	}
	if n := d.NVMe; n != nil {
		add(n.SanitizeCrypto, SanitizeCrypto)
		add(n.SanitizeBlock, SanitizeBlock)
		add(n.Format && n.FormatCrypto, FormatCrypto)
		add(n.Format, FormatErase)
	}
	if a := d.ATA; a != nil && a.Security {
		switch {
		case a.Frozen:
			s.Notes = append(s.Notes, "ATA secure erase is left out: the firmware has frozen the disk's security")
		case a.Expired:
			s.Notes = append(s.Notes, "ATA secure erase is left out: too many wrong passwords were tried since the disk was powered on")
		case a.Enabled:
			s.Notes = append(s.Notes, "ATA secure erase is left out: the disk has an ATA password, which is removed only if a cleaning that was interrupted has set it")
		default:
			add(a.Enhanced, ATAEnhanced)
			add(true, ATAErase)
		}
	}
	if d.Zoned {
		return
	}
	add(d.Discards && d.DiscardsMayBeSecure, SecureDiscard)
	add(d.Discards, Discard)
	add(true, ZeroOut)
	add(true, WriteZeroes)
}

// Area is a part of a disk.
type Area struct{ Offset, Bytes int64 }

// The samples of a disk. Of a disk of which one percent is not erased, all samples miss that part once in 170 times; of ten percent, practically never.
const (
	edgeBytes   = 1 << 20
	sampleBytes = 64 << 10
	samples     = 512
)

// Samples returns the parts of a disk that are read back: the first and the last MiB, with the partition tables, and others at random. random
// returns a number below n. A disk that is not much larger than its samples is read as a whole.
func Samples(bytes int64, blockBytes int, random func(n int64) int64) []Area {
	if bytes <= 2*(2*edgeBytes+samples*sampleBytes) {
		return Whole(bytes)
	}
	areas := []Area{{0, edgeBytes}}
	// A multiple of the largest common block, so that it can be read past the cache; sampleBytes is one, too.
	unit := int64(max(blockBytes, 4096))
	for range samples {
		areas = append(areas, Area{edgeBytes + random((bytes-2*edgeBytes-sampleBytes)/unit)*unit, sampleBytes})
	}
	slices.SortFunc(areas, func(a, b Area) int { return int(min(max(a.Offset-b.Offset, -1), 1)) })
	return append(areas, Area{bytes - edgeBytes, edgeBytes})
}

// wholeBytes is how much of a disk is read by one call where all of it is read: disks are fast when they have much to do at once.
const wholeBytes = 16 << 20

// Whole returns a disk in parts.
func Whole(bytes int64) []Area {
	areas := make([]Area, 0, (bytes+wholeBytes-1)/wholeBytes)
	for at := int64(0); at < bytes; at += wholeBytes {
		areas = append(areas, Area{at, min(wholeBytes, bytes-at)})
	}
	return areas
}
