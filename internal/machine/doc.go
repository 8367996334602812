// Package machine is the wing of physical machines: how they are switched, booted, inspected and matched with images.
//
// It holds no code, only the map of its folders. A package belongs here when it is about machines alone. Packages that members,
// nodes or builds share stay outside: children, inventory, image and imagestore. No folder here decides what happens to a machine:
// lifecycle plans, decision writes, controller hands down.
//
// Start with the path that a machine takes from off to ready:
//
//   - compatibility reports whether an image suits a machine.
//   - provisioner carries out power orders, through the switches of power: Redfish, IPMI, Wake-on-LAN, or a person.
//   - netboot answers the machine's firmware and loader: DHCP, TFTP, HTTP, an iPXE script.
//   - initrd makes the initial RAM disk from the boot agent in bootbin and the modules that kernelmodule selects.
//   - boot defines what server and booting machine exchange, and the boot token between them. bootapi is the server's side.
//   - bootagent is the machine's side: its first process, and later its init. Its parts are blockdev, lazyroot and bootctl.
//   - cleaning erases what a tenant left on the machine, as its plan says, and reads it back.
//   - inspection reports what the machine is made of and whether it is healthy. lldp hears the switches that it is plugged into.
package machine
