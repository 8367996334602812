package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// localDisk is what counts of a machine's disk: its size, and its kind in the words of inspection.
type localDisk struct {
	bytes      int64
	rotational bool
	transport  string
}

func localDisks(rec api.NodeRecord) []localDisk {
	var all []localDisk
	for _, d := range rec.Disks {
		all = append(all, localDisk{bytes: d.SizeBytes, rotational: d.Rotational, transport: d.Transport})
	}
	return all
}

func (d localDisk) serves(r api.MachineDisks) bool {
	disk := api.Disk{SizeBytes: d.bytes, Rotational: d.rotational, Transport: d.transport}
	return disk.Is(r.Kind, r.Size)
}

// hasDisks reports whether a machine has all disks that are asked for, each request's its own.
func (p platform) hasDisks(requests []api.DiskRequest) bool {
	return lackingDisks(p.disks, requests) == ""
}

// lackingDisks returns the first request for which a machine has too few disks, beside those of the requests before; "" where it has all. A disk serves one
// request: it is a matching, which grows by one disk at a time along a chain of disks that change their request.
func lackingDisks(disks []localDisk, requests []api.DiskRequest) api.DiskRequest {
	taken := make([]int, len(disks)) // by disk: which wanted one has it, plus 1
	var wanted []api.MachineDisks
	var find func(want int, seen []bool) bool
	find = func(want int, seen []bool) bool {
		for i, d := range disks {
			if seen[i] || !d.serves(wanted[want]) {
				continue
			}
			seen[i] = true
			if taken[i] == 0 || find(taken[i]-1, seen) {
				taken[i] = want + 1
				return true
			}
		}
		return false
	}
	for _, text := range requests {
		r, err := text.Parse()
		if err != nil { // it was checked before it was stored
			return text
		}
		for range r.Count {
			wanted = append(wanted, r)
			if !find(len(wanted)-1, make([]bool, len(disks))) {
				return text
			}
		}
	}
	return ""
}

// localDisksProblem returns why a machine does not have the disks that a group asks for.
func localDisksProblem(rec api.NodeRecord, requests []api.DiskRequest) string {
	lacks := lackingDisks(localDisks(rec), requests)
	if lacks == "" {
		return ""
	}
	var has []string
	for _, d := range rec.Disks {
		has = append(has, fmt.Sprintf("%s (%s)", d.Name, diskText(d)))
	}
	text := "it has no disks"
	if len(has) > 0 {
		text = "it has " + shorten(has)
	}
	text += fmt.Sprintf(", which are too few for the request %s", lacks)
	if len(requests) > 1 {
		text += " besides the others"
	}
	return text
}

func diskText(d api.Disk) string {
	words := []string{fmt.Sprintf("%.0f GB", float64(d.SizeBytes)/1e9)} // disks are sold so
	if d.Transport != "" {
		words = append(words, d.Transport)
	}
	if d.Rotational {
		words = append(words, "hdd")
	}
	return strings.Join(words, " ")
}

// aboutLocalDisks tells of machines that lack the disks of a group.
func (d *diagnosis) aboutLocalDisks(r *Refusal) []string {
	var texts []string
	for _, n := range d.failing(ConstraintLocalDisks) {
		texts = append(texts, n.record.Name+": "+localDisksProblem(n.record, r.Need.LocalDisks))
	}
	var wanted []string
	for _, text := range r.Need.LocalDisks {
		wanted = append(wanted, string(text))
	}
	what := "has the disks " + strings.Join(wanted, " and ")
	return d.tooFew("no machine "+what, "too few machines have the disks "+strings.Join(wanted, " and "), texts)
}

// disksKey is equal for nodes with equal disks.
func disksKey(rec api.NodeRecord) string {
	var parts []string
	for _, d := range localDisks(rec) {
		parts = append(parts, fmt.Sprintf("d%d\x00%t\x00%s", d.bytes, d.rotational, d.transport))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\x01")
}
