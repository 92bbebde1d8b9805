#ifndef PLANTED_H
#define PLANTED_H

/* Each returns 0, or another number if it could not be made. */
/* Two threads give ferry_config_set the same error. */
int planted_race(void);
/* ferry_config_set gets an error that was freed. */
int planted_use_after_free(void);

#endif
