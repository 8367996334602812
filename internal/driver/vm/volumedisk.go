package vm

import (
	"bytes"
	"fmt"
	"path/filepath"
	"text/template"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// A block volume is a disk of its machine, which QEMU reads and writes by NBD. What serves it may start anew, and a node that it lies on may be away:
// QEMU connects again and again, and the guest's reads and writes wait.

// reconnectSeconds is for how long QEMU holds back what a guest wants of a disk that does not answer, before the guest gets an error: no member is given
// up because of that. It is the greatest that QEMU takes.
const reconnectSeconds = 1<<31 - 1

// volumeDisk is a block volume as a disk of a machine.
type volumeDisk struct {
	Socket, Target, Bus, Serial string
	ReadOnly                    bool
}

const volumeDiskTemplate = `<disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='none'{{if eq .Bus "virtio"}} iothread='1'{{end}}/>
      <source protocol='nbd' name='{{xml .Serial}}'>
        <host transport='unix' socket='{{xml .Socket}}'/>
        <reconnect delay='{{.Delay}}'/>
      </source>
      <target dev='{{.Target}}' bus='{{.Bus}}'/>
{{- if .ReadOnly}}
      <readonly/>
{{- end}}
      <serial>{{xml .Serial}}</serial>
    </disk>`

// Delay is for how long the disk may be away, in seconds.
func (volumeDisk) Delay() int { return reconnectSeconds }

// XML is the disk as libvirt gets it.
func (d volumeDisk) XML() (string, error) {
	tmpl, err := template.New("disk").Funcs(template.FuncMap{"xml": escaped}).Parse(volumeDiskTemplate)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = tmpl.Execute(&out, d)
	return out.String(), err
}

// volumeDisks are the disks of a member's machine, on a bus that its system has a driver for. Other disks have the letters before q.
func volumeDisks(m driver.Member, v view, virtio bool) (disks []volumeDisk) {
	prefix, bus := "vd", "virtio"
	if !virtio {
		prefix, bus = "sd", "sata"
	}
	for n, d := range m.Disks {
		disks = append(disks, volumeDisk{
			Socket: filepath.Join(v.volume(n), filepath.Base(d.Socket)), Target: prefix + string(rune('q'+n)), Bus: bus, Serial: guestlink.DiskSerial(d.Name), ReadOnly: d.ReadOnly,
		})
	}
	return disks
}

func (v view) volume(n int) string { return filepath.Join(v.dir, fmt.Sprintf("volume-%d", n)) }

// shownDisks are the directories of the sockets that a member's QEMU connects to.
func shownDisks(m driver.Member, v view) (all []shown) {
	for n, d := range m.Disks {
		all = append(all, shown{path: filepath.Dir(d.Socket), at: v.volume(n), readOnly: true})
	}
	return all
}
