package inspection

import (
	"bufio"
	"os"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// databases are where distributions have the PCI ID database. It is read where it is: inside the boot agent it would be larger than the rest of it.
var databases = []string{"usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"}

// nameFunctions names PCI functions by the database, those it lacks by vendor and class.
func (s source) nameFunctions(functions []api.PCI) {
	names := map[string]string{}
	for _, f := range functions {
		names[f.Device] = ""
	}
	for _, database := range databases {
		if lookUp(s.tree.Path(database), names) == nil {
			break
		}
	}
	for i := range functions {
		f := &functions[i]
		vendor, device, _ := strings.Cut(f.Device, ":")
		switch {
		case names[f.Device] != "":
			f.Name = names[f.Device]
		case vendors[vendor] != "":
			f.Name = vendors[vendor] + " " + className(f.Class) + " " + device
		default:
			f.Name = className(f.Class) + " " + f.Device
		}
	}
}

// lookUp fills in the names of functions by VENDOR:DEVICE. In the database a vendor's line begins with its number, those of its devices
// with a tab, those of subsystems with two; lines of classes, which come last, with a C.
func lookUp(database string, names map[string]string) error {
	file, err := os.Open(database)
	if err != nil {
		return err
	}
	defer file.Close()
	var vendor, vendorName string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		number, name, found := strings.Cut(strings.TrimPrefix(line, "\t"), "  ")
		switch {
		case strings.HasPrefix(line, "C "):
			return nil
		case !found || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "\t\t"):
		case !strings.HasPrefix(line, "\t"):
			vendor, vendorName = number, name
		default:
			if _, wanted := names[vendor+":"+number]; wanted {
				names[vendor+":"+number] = vendorName + " " + name
			}
		}
	}
	return lines.Err()
}

// vendors are those whose devices are seen in clusters most.
var vendors = map[string]string{
	"1002": "AMD", "1022": "AMD", "1000": "Broadcom", "10de": "NVIDIA", "10ec": "Realtek", "1077": "QLogic", "1137": "Cisco",
	"11f8": "Microchip", "1344": "Micron", "144d": "Samsung", "14e4": "Broadcom", "15b3": "Mellanox", "15b7": "SanDisk", "1924": "Solarflare",
	"19e5": "Huawei", "1a03": "ASPEED", "1af4": "virtio", "1b36": "QEMU", "1b4b": "Marvell", "1bb1": "Seagate", "1c5c": "SK hynix",
	"1cc1": "ADATA", "1da3": "Habana", "1dd8": "Pensando", "1e0f": "Kioxia", "1fc1": "QLogic", "1d0f": "Amazon", "8086": "Intel", "1234": "QEMU",
}

// className is a PCI class in words (PCI Code and ID Assignment Specification).
func className(class string) string {
	if name := classes[class[:4]]; name != "" {
		return name
	}
	if name := classes[class[:2]]; name != "" {
		return name
	}
	return "device"
}

var classes = map[string]string{
	"00": "device", "01": "storage controller", "0104": "RAID controller", "0106": "SATA controller", "0107": "SAS controller",
	"0108": "NVMe controller", "02": "network controller", "0200": "Ethernet controller", "0207": "InfiniBand controller",
	"03": "display controller", "0300": "VGA controller", "0302": "3D controller", "04": "multimedia device", "05": "memory controller",
	"0502": "CXL memory", "07": "communication controller", "09": "input device", "0b": "co-processor", "0c": "serial bus controller",
	"0c03": "USB controller", "0c05": "SMBus", "0d": "wireless controller", "10": "encryption controller", "12": "processing accelerator",
}
