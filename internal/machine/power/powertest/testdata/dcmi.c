/*
 * A module of OpenIPMI's ipmi_sim: the command Get Power Reading of the Data Center Manageability Interface (DCMI 1.5, section 6.6.1), which ipmi_sim
 * lacks. The option is the present power in watts and whether it is being read, such as "344 1". This is an emulation for tests: it was written from
 * the specification, and no BMC was at hand to compare it with.
 */
#include <stdio.h>
#include <string.h>

#include <OpenIPMI/mcserv.h>

enum {
	dcmi = 0xdc,
	get_power_reading = 0x02,
	system_power = 0x01,

	completed = 0x00,
	invalid_command = 0xc1,
	field_invalid = 0xcc,
};

static unsigned watts, active;

static void put(unsigned char *at, unsigned bytes, unsigned value)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = value >> 8 * i;
}

static void answer(lmc_data_t *mc, msg_t *msg, unsigned char *out, unsigned int *length, void *data)
{
	(void)mc, (void)data;
	out[1] = dcmi;
	*length = 2;
	if (msg->cmd != get_power_reading) {
		out[0] = invalid_command;
		return;
	}
	if (msg->len < 4 || msg->data[1] != system_power) {
		out[0] = field_invalid;
		return;
	}
	out[0] = completed;
	put(out + 2, 2, watts);
	put(out + 4, 2, watts / 2);
	put(out + 6, 2, watts * 2);
	put(out + 8, 2, watts + 1);
	put(out + 10, 4, 1700000000);
	put(out + 14, 4, 1000);
	out[18] = active << 6;
	*length = 19;
}

int ipmi_sim_module_init(sys_data_t *sys, const char *options)
{
	(void)sys;
	if (!options || sscanf(options, "%u %u", &watts, &active) != 2)
		return 1;
	ipmi_emu_register_group_extension_handler(dcmi, answer, NULL);
	return 0;
}
