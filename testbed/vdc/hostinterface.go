package vdc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// HostInterface is what a machine's own root can do with its BMC.
type HostInterface string

// The host interfaces.
const (
	HostNone     HostInterface = ""         // the machine does not reach its BMC
	HostClosable HostInterface = "closable" // KCS, with an emulated firmware firewall (IPMI 2.0, chapter 21)
	HostFixed    HostInterface = "fixed"    // KCS that nothing can close
)

// vmPort is the first of the ports at which ipmi_sim waits for QEMU, inside.
const vmPort = 9100

// simConfig is one BMC of OpenIPMI's ipmi_sim: IPMI over LAN, and KCS by the protocol that QEMU's ipmi-bmc-extern speaks (ipmi_lan(5)). The second user
// is the site's.
const simConfig = `name "%[1]s"
set_working_mc 0x20
startlan 1
  addr %[2]s %[3]d
  priv_limit admin
  allowed_auths_admin none md5
  guid %[4]s
endlan
serial kcs 127.0.0.1 %[5]d codec VM
chassis_control "/bin/sh %[6]s/chassis.sh %[6]s %[1]s"
user 2 true "%[7]s" "%[8]s" admin 10 none md5
loadlib "%[9]s" "%[10]s"
`

// simCommands make that BMC (ipmi_sim_cmd(5)).
const simCommands = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nmc_enable 0x20\n"

// writeSims puts the settings of the BMCs that their machines reach into the folder kcs, which inside.sh reads.
func (dc *DataCentre) writeSims() error {
	var module string
	for _, m := range dc.machines {
		if m.config.HostInterface == HostNone {
			continue
		}
		if module == "" {
			var err error
			if module, err = HostInterfaceModule(context.Background()); err != nil {
				return err
			}
		}
		option := map[HostInterface]string{HostClosable: "", HostFixed: "fixed"}[m.config.HostInterface]
		config := fmt.Sprintf(simConfig, m.Name, m.bmc, ipmiPort, strings.ReplaceAll(m.UUID, "-", ""), m.vmPort, dc.dir, m.User, m.Password, module, option)
		folder := filepath.Join(dc.dir, "kcs", m.Name)
		err := errors.Join(
			os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, "sim.conf"), []byte(config), 0o600),
			os.WriteFile(filepath.Join(folder, "sim.emu"), []byte(simCommands), 0o600),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// HostInterfaceModule makes the module of ipmi_sim that emulates a firmware firewall, once for each version of its source, and returns its path.
// It needs a C compiler and the Debian package libopenipmi-dev.
func HostInterfaceModule(ctx context.Context) (string, error) {
	source, err := fs.ReadFile(files, "inner/hostinterface.c")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(source)
	module := filepath.Join(CacheDir, "hostinterface-"+hex.EncodeToString(sum[:6])+".so")
	if _, err := os.Stat(module); err == nil {
		return module, nil
	}
	if err := os.MkdirAll(CacheDir, 0o755); err != nil {
		return "", err
	}
	made, err := os.CreateTemp(CacheDir, "hostinterface-*.new")
	if err != nil {
		return "", err
	}
	defer os.Remove(made.Name())
	if err := made.Close(); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-x", "c", "-o", made.Name(), "-")
	cmd.Stdin = strings.NewReader(string(source))
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the module of ipmi_sim (it needs a C compiler and libopenipmi-dev): %w\n%s", err, output)
	}
	return module, os.Rename(made.Name(), module)
}

// waitForSim waits until ipmi_sim listens for QEMU: it opens that port last.
func (dc *DataCentre) waitForSim(ctx context.Context, m *Machine) error {
	err := until(ctx, dc.keeper.ended, func() error {
		conn, err := dc.dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", m.vmPort))
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dc.dir, "log", "kcs-"+m.Name+".log"))
		return fmt.Errorf("waiting for ipmi_sim of %s: %w\n%s", m.Name, err, log)
	}
	return nil
}
