package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// powerKinds are how a machine's power can be controlled.
var powerKinds = []string{string(api.PowerRedfish), string(api.PowerIPMI), string(api.PowerWakeOnLAN), string(api.PowerManual)}

// bmcFlags say how a machine's power is controlled.
type bmcFlags struct {
	kind, address, user, passwordFile, system, certificate string
}

func (f *bmcFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.kind, "power", "", "how its power is controlled: redfish, ipmi, wol or manual")
	flags.StringVar(&f.address, "bmc", "", "the BMC's address: HOST[:PORT] for ipmi, an http or https URL for redfish")
	flags.StringVar(&f.user, "bmc-user", "", "user to log in to the BMC as")
	flags.StringVar(&f.passwordFile, "bmc-password-file", "", "file with the BMC's password, - for standard input (default: it is asked for on a terminal)")
	flags.StringVar(&f.system, "bmc-system", "", "which of several systems behind one Redfish service: its Id, UUID or Name")
	flags.StringVar(&f.certificate, "bmc-certificate", "", "SHA-256 of the BMC's certificate, to trust no other")
	// Only fails for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("power", cobra.FixedCompletions(powerKinds, cobra.ShellCompDirectiveNoFileComp))
}

func completeFirmware(cmd *cobra.Command) {
	// Only fails for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("firmware", cobra.FixedCompletions([]string{string(api.FirmwareBIOS), string(api.FirmwareUEFI)}, cobra.ShellCompDirectiveNoFileComp))
}

// control is what the flags say.
func (f *bmcFlags) control() api.PowerControl {
	return api.PowerControl{
		Kind: api.PowerKind(f.kind), Address: f.address, User: f.user, System: f.system, CertificateSHA256: f.certificate,
	}
}

// hasBMC tells whether there is a password to ask for.
func (f *bmcFlags) hasBMC() bool { return hasBMC(api.PowerKind(f.kind)) }

func hasBMC(kind api.PowerKind) bool { return kind == api.PowerIPMI || kind == api.PowerRedfish }

// password reads the BMC's password: of the file, or of who sits at the terminal. That there is none must be said, by an empty file.
func (a *app) password(f *bmcFlags) (string, error) {
	switch {
	case f.passwordFile == "-":
		text, err := io.ReadAll(io.LimitReader(a.Streams.In, 4096))
		return strings.TrimRight(string(text), "\r\n"), err
	case f.passwordFile != "":
		text, err := os.ReadFile(f.passwordFile)
		if err != nil {
			return "", usage("--bmc-password-file: %s", fileProblem(f.passwordFile, err))
		}
		return strings.TrimRight(string(text), "\r\n"), nil
	case !f.hasBMC():
		return "", nil
	}
	in, ok := a.Streams.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return "", usage("give the BMC's password: --bmc-password-file FILE, - for standard input (/dev/null: it has none)")
	}
	fmt.Fprintf(a.Streams.Err, "password of %s at the BMC: ", f.user)
	text, err := term.ReadPassword(int(in.Fd()))
	fmt.Fprintln(a.Streams.Err)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return string(text), nil
}

// machineFlagsError names the fields of a machine by the flags they were given with.
func machineFlagsError(err error) error {
	var invalid *manifest.Invalid
	var refused *client.Error
	switch {
	case errors.As(err, &invalid):
		return machineFlags(invalid.Problems)
	case errors.As(err, &refused) && len(refused.Errors) > 0:
		told := *refused
		told.Detail = machineFlags(refused.Errors).Error()
		return &told
	}
	return err
}

func machineFlags(problems []api.FieldProblem) *manifest.Invalid {
	flags := &manifest.Invalid{}
	for _, p := range problems {
		p.Line = 0
		for _, named := range [][2]string{
			{"spec.macs", "--mac"},
			{"spec.power.kind", "--power"},
			{"spec.power.address", "--bmc"},
			{"spec.power.user", "--bmc-user"},
			{"spec.power.system", "--bmc-system"},
			{"spec.power.certificate_sha256", "--bmc-certificate"},
			{"spec.console", "--console"},
			{"spec.firmware", "--firmware"},
			{"spec.labels", "--labels"},
			{"spec.trunk_mac", "--trunk-mac"},
			{"spec.adapters", "--fabric"},
			{"spec.switch_ports", "--switch-port"},
			{"password", "--bmc-password-file"},
			{"name", "NAME"},
		} {
			if rest, ok := strings.CutPrefix(p.Location, named[0]); ok {
				p.Location = named[1] + rest
				break
			}
		}
		flags.Problems = append(flags.Problems, p)
	}
	return flags
}
