package lvmthin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// kind is what a pool of this package is called.
const kind = "lvm"

// What people are to do about what a host lacks.
const notInstalled = "LVM is not installed; run: apt-get install lvm2 thin-provisioning-tools"

// missing is what the host lacks, whatever its disks have.
func (s *Store) missing() (problems []string) {
	if _, err := program("lvm"); err != nil {
		problems = append(problems, notInstalled)
	} else if _, err := program("thin_check"); err != nil {
		problems = append(problems, "thin_check is not installed, without which LVM uses no thin pool; run: apt-get install thin-provisioning-tools")
	}
	control, err := openMapper()
	if err != nil {
		return append(problems, err.Error())
	}
	_ = control.Close()
	return problems
}

// Describe tells what the thin pool has for images. It makes nothing, but gives the pool its devices.
func (s *Store) Describe(context.Context) api.VolumePool {
	if problems := s.missing(); len(problems) > 0 {
		return api.VolumePool{Problems: problems}
	}
	f, err := s.look()
	if err == nil && !f.Pool.Active {
		if err = s.wake([]string{s.full(s.cfg.Pool)}); err == nil {
			f, err = s.look()
		}
	}
	if err != nil {
		return api.VolumePool{Problems: []string{s.explain(err)}}
	}
	if problems := s.problems(f.Pool); len(problems) > 0 {
		return api.VolumePool{Problems: problems}
	}
	r := f.room()
	return api.VolumePool{Kind: kind, CapacityBytes: r.CapacityBytes(), HeldBytes: r.HeldBytes()}
}

// explain says what to do about what kept a look from the pool.
func (s *Store) explain(err error) string {
	group, pool := s.cfg.Group, s.cfg.Pool
	switch text := err.Error(); {
	case errors.Is(err, errNoPool):
		return fmt.Sprintf("volume group %s has no thin pool named %s; make it: lvcreate --type thin-pool -l 95%%FREE -n %s %s", group, pool, pool, group)
	case strings.Contains(text, `"`+group+`" not found`):
		return fmt.Sprintf("there is no volume group %s; connect its disks, or make it: vgcreate %s DEVICE", group, group)
	default:
		return fmt.Sprintf("thin pool %s can't be used: %s", s.full(pool), text)
	}
}

func (s *Store) zeroing() string {
	pool := s.full(s.cfg.Pool)
	return fmt.Sprintf("thin pool %s does not zero new blocks, so that volumes would show what others have written; run: lvchange --zero y %s", pool, pool)
}

// problems are why a thin pool that is there can't be used.
func (s *Store) problems(p *pool) (problems []string) {
	pool := s.full(s.cfg.Pool)
	if !p.Active {
		problems = append(problems, fmt.Sprintf("thin pool %s is not active; run: lvchange -ay %s", pool, pool))
	}
	if !p.Zeroes {
		problems = append(problems, s.zeroing())
	}
	switch p.Health {
	case "":
	case "out_of_data":
		problems = append(problems, fmt.Sprintf("thin pool %s is out of data space, because more was promised than it has; make it larger: lvextend -L +SIZE %s", pool, pool))
	case "metadata_read_only":
		problems = append(problems, fmt.Sprintf(
			"the metadata of thin pool %s is read-only, after an error or for want of room; look at dmesg, then deactivate the pool and run: lvconvert --repair %s, or lvextend --poolmetadatasize +SIZE %s", pool, pool, pool))
	case "failed":
		problems = append(problems, fmt.Sprintf("thin pool %s has failed; look at dmesg and at its disks, then deactivate it and run: lvconvert --repair %s", pool, pool))
	default:
		problems = append(problems, fmt.Sprintf("LVM says of thin pool %s: %s; look at lvs -o +lv_health_status %s and at dmesg", pool, p.Health, pool))
	}
	return problems
}

// why says, where more was promised than there is or metadata is what is short, what to do.
func (r Room) why() string {
	switch {
	case r.dataLeft() < 0:
		return fmt.Sprintf("; the thin pool lacks %d MiB for all that its logical volumes may come to take; make it larger: lvextend -L +SIZE", -r.dataLeft()>>20)
	case r.metadataLeft()/chunkMetadata*r.ChunkBytes < r.dataLeft():
		return "; the thin pool's metadata is what is short; make it larger: lvextend --poolmetadatasize +SIZE"
	}
	return ""
}
