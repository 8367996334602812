package modelhost

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// showRDMA makes the files of a function's RDMA device.
func (h *Host) showRDMA(d *device) {
	dir := "/sys/class/infiniband/" + d.rdma
	layer := "Ethernet"
	if d.pf.config.Kind.infiniband() {
		layer = "InfiniBand"
	} else {
		h.root.put(dir+"/ports/1/gid_attrs/types/0", value("RoCE v2"))
	}
	h.root.put(dir+"/ports/1/link_layer", value(layer))
	h.root.put(dir+"/ports/1/state", value("4: ACTIVE"))
	h.root.put(dir+"/ports/1/rate", value("100 Gb/sec (4X EDR)"))
	h.root.put(dir+"/ports/1/gids/0", value(gid("00025500000000"+d.pci[5:7])))
	a := d.pf
	if a.config.Kind != MLX4 || d.index >= 0 {
		return
	}
	for i := range pkeyTable {
		h.root.put(fmt.Sprintf("%s/iov/ports/1/pkeys/%d", dir, i), shown(func() string { return fmt.Sprintf("0x%04x", a.pkeys[i]) }))
	}
	for i := range pkeyTable {
		h.root.put(fmt.Sprintf("%s/iov/ports/1/gids/%d", dir, i), shown(func() string { return gid(a.granted[i]) }))
		h.root.put(fmt.Sprintf("%s/iov/ports/1/admin_guids/%d", dir, i), &node{
			read: func() (string, error) {
				return strings.TrimLeft(zero(a.admin[i])[:15], "0") + zero(a.admin[i])[15:], nil
			},
			write: func(text string) error { return h.writeAlias(a, i, text) },
		})
	}
}

func zero(guid string) string {
	if guid == "" {
		return "0000000000000000"
	}
	return guid
}

// gid writes a GUID behind the default prefix of a subnet, as the kernel does.
func gid(guid string) string {
	g := zero(guid)
	return "fe80:0000:0000:0000:" + strings.Join([]string{g[:4], g[4:8], g[8:12], g[12:]}, ":")
}

// writeAlias asks the subnet manager for an alias GUID. The manager of the model grants all.
func (h *Host) writeAlias(a *adapter, slave int, text string) error {
	if slave == 0 {
		return nil // "GUID 0 block 0 is RO"
	}
	guid, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(text), "0x"), 16, 64)
	if err != nil {
		return nil //nolint:nilerr // the driver takes no notice of what it can't read
	}
	a.admin[slave] = fmt.Sprintf("%016x", guid)
	a.granted[slave] = a.admin[slave]
	if a.admin[slave] == "ffffffffffffffff" {
		a.granted[slave] = ""
	}
	if slave <= len(a.functions) {
		h.event(a.functions[slave-1], "GUID")
	}
	return nil
}

// showSlaves makes the tables of the functions of an mlx4 adapter. Entry 0 of a new one leads to entry 0 of the port's: the default partition.
func (h *Host) showSlaves(a *adapter) {
	for _, d := range a.functions {
		slave := d.index + 1
		table := make([]int, functionPKeys)
		for i := range table {
			table[i] = pkeyTable - 1
		}
		table[0] = 0
		a.maps[slave] = table
		dir := fmt.Sprintf("/sys/class/infiniband/%s/iov/%s%02d.%d/ports/1", a.rdma, a.pci[:len("0000:3b:")], slave/8, slave%8)
		h.root.put(dir+"/enable_smi_admin", &node{read: func() (string, error) { return "0", nil }, write: func(string) error { return nil }})
		for i := range table {
			h.root.put(fmt.Sprintf("%s/pkey_idx/%d", dir, i), &node{
				read: func() (string, error) {
					if a.maps[slave][i] >= pkeyTable-1 {
						return "none", nil
					}
					return strconv.Itoa(a.maps[slave][i]), nil
				},
				write: func(text string) error {
					index := pkeyTable - 1
					if !strings.HasPrefix(strings.ToLower(text), "no") {
						n, err := strconv.Atoi(strings.TrimSpace(text))
						if err != nil || n < 0 || n >= pkeyTable-1 {
							return unix.EINVAL
						}
						index = n
					}
					a.maps[slave][i] = index
					if d.index < len(a.functions) {
						h.event(a.functions[d.index], "partition key")
					}
					return nil
				},
			})
		}
	}
}

// PKey makes the subnet manager put a partition key into the table of an adapter's port, with its membership bit.
func (h *Host) PKey(pf string, index, pkey int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adapters[pf].pkeys[index] = pkey
}
