package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/environment/diskimage"
)

// imported is the recipe of an imported disk, as the command writes it. JSON is YAML.
type imported struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Base        map[string]string `json:"base"`
	Disk        map[string]any    `json:"disk,omitempty"`
}

// importFlags are what a user says about a disk.
type importFlags struct {
	system, firmware, description, console string
	tcp                                    int
	ssh, ping                              bool
	timeout                                time.Duration
}

func (f *importFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.system, "os", "linux", "system on the disk: linux, windows or other")
	flags.StringVar(&f.firmware, "firmware", "", "firmware to boot the disk with: bios or uefi (default: found on the disk)")
	flags.StringVar(&f.description, "description", "", "one line about the environment")
	flags.BoolVar(&f.ssh, "probe-ssh", false, "a member is ready when its SSH server speaks (the default)")
	flags.IntVar(&f.tcp, "probe-tcp", 0, "a member is ready when this TCP port takes a connection")
	flags.BoolVar(&f.ping, "probe-ping", false, "a member is ready when it answers a ping")
	flags.StringVar(&f.console, "probe-console", "", "a member is ready when it has printed this text on its first serial port")
	flags.DurationVar(&f.timeout, "probe-timeout", 4*time.Minute, "a member that is not ready after this time is unhealthy")
}

// recipe is the text of the recipe that imports the disk of a digest.
func (f *importFlags) recipe(flags *pflag.FlagSet, name, digest string) (string, error) {
	probe := map[string]any{"timeout": f.timeout.String()}
	for way, value := range map[string]any{"tcp": f.tcp, "ssh": f.ssh, "ping": f.ping, "console": f.console} {
		if flags.Changed("probe-" + way) {
			probe[way] = value
		}
	}
	if len(probe) == 1 {
		probe["ssh"] = true
	}
	disk := map[string]any{"os": f.system, "probe": probe}
	if f.firmware != "" {
		disk["firmware"] = f.firmware
	}
	text, err := json.Marshal(imported{Name: name, Description: f.description, Base: map[string]string{"disk": digest}, Disk: disk})
	return string(text), err
}

func (a *app) envImport() *cobra.Command {
	var disk importFlags
	var force, detach bool
	cmd := &cobra.Command{
		Use: "import NAME FILE", Short: "Import the disk image of another system",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("give a name for the environment and the file of the disk image")
			}
			return nil
		},
		Long: `Import the disk image of another system, raw or qcow2, as an environment for virtual machines. The file is uploaded, and a trusted builder
('nearmetal node trust') checks and packs it. Each member boots from a private copy of the disk. There need be nothing of this product in it:
cloud-init, where it is installed, gets names, network, the user and SSH keys from a seed disk (NoCloud), and a member is ready when it passes
the probe: --probe-ssh, which is the default, --probe-tcp, --probe-ping or --probe-console.

Disks of --os linux have virtio devices. Those of --os windows have devices that Windows has drivers for, a clock in local time, and
Hyper-V's interfaces; those of --os other have such devices, too.`,
		Example: "  nearmetal env import debian-cloud debian-12-generic-amd64.qcow2\n  nearmetal env import win2025 disk.qcow2 --os windows --probe-tcp 3389 --probe-timeout 15m",
	}
	disk.register(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "import although there is an image of the same disk")
	cmd.Flags().BoolVar(&detach, "detach", false, "print the build's ID and do not wait for it")
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		digest, err := a.upload(cmd.Context(), c, args[1])
		if err != nil {
			return err
		}
		text, err := disk.recipe(cmd.Flags(), args[0], digest)
		if err != nil {
			return err
		}
		b, err := c.CreateBuild(cmd.Context(), api.BuildRequest{Recipe: text, Force: force})
		if err != nil {
			return err
		}
		if detach {
			return out.print(a.Streams.Out, b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
		}
		return a.awaitBuild(cmd.Context(), c, b, viewSteps, out)
	}
	return cmd
}

// upload checks and uploads the file of a disk image, and returns its digest.
func (a *app) upload(ctx context.Context, c *client.Client, path string) (string, error) {
	file, err := openDisk(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	p := a.progress()
	defer p.stop()
	p.say("reading " + path)
	digest, size, err := digestOf(file)
	if err != nil {
		return "", usage("%s: %v", path, err)
	}
	p.say("uploading " + path)
	return digest, c.Upload(ctx, digest, size, file)
}

// openDisk opens a disk image, and refuses early what a builder would refuse.
func openDisk(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usage("%s", fileProblem(path, err))
	}
	info, err := file.Stat()
	if err == nil && info.Mode().Type() != 0 {
		err = fmt.Errorf("it is no regular file (%s)", fs.FormatFileInfo(info))
	}
	if err == nil {
		_, err = diskimage.Inspect(file, info.Size())
	}
	if err != nil {
		_ = file.Close()
		return nil, usage("%s can't be imported: %v", path, err)
	}
	return file, nil
}

// digestOf reads a file to its end, for its digest, and goes back to its beginning.
func digestOf(file *os.File) (string, int64, error) {
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return "", 0, err
	}
	_, err = file.Seek(0, io.SeekStart)
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), size, err
}

// probeText says how a member without an agent is ready.
func probeText(p api.Probe) string {
	way := ""
	switch {
	case p.SSH:
		way = "its SSH server speaks"
	case p.TCP != 0:
		way = fmt.Sprintf("TCP port %d takes a connection", p.TCP)
	case p.Ping:
		way = "it answers a ping"
	case p.Console != "":
		way = fmt.Sprintf("%q is on the serial console", p.Console)
	}
	return strings.TrimSpace(way + fmt.Sprintf(", within %s", time.Duration(p.Timeout)))
}
