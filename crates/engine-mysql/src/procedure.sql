CREATE PROCEDURE `@run5`(IN script LONGTEXT CHARACTER SET utf8mb4) MODIFIES SQL DATA SQL SECURITY INVOKER
COMMENT 'runs statements: a JSON array with an array for each of what it needs, with commas between, and its text'
BEGIN
    DECLARE done INT DEFAULT 0;
    DECLARE needs VARCHAR(64) CHARACTER SET utf8mb4;
    DECLARE step LONGTEXT CHARACTER SET utf8mb4;
    DECLARE steps CURSOR FOR SELECT s.needs, s.step FROM JSON_TABLE(script, '$[*]' COLUMNS (
        needs VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[0]', step LONGTEXT CHARACTER SET utf8mb4 PATH '$[1]')) AS s;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = 1;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    OPEN steps;
    all_steps: LOOP
        SET done = 0;
        FETCH steps INTO needs, step;
        IF done THEN
            LEAVE all_steps;
        END IF;
        IF (NOT FIND_IN_SET('@f = 0', needs) OR @f = 0) AND (NOT FIND_IN_SET('@f IS NULL', needs) OR @f IS NULL)
        AND (NOT FIND_IN_SET('@x', needs) OR @x) AND (NOT FIND_IN_SET('@c', needs) OR @c)
        AND (NOT FIND_IN_SET('@h', needs) OR @h) AND (NOT FIND_IN_SET('@t', needs) OR @t)
        AND (NOT FIND_IN_SET('NOT @t', needs) OR NOT @t) THEN
            CASE step
            WHEN 'START TRANSACTION' THEN START TRANSACTION; -- MySQL cannot prepare it
            WHEN 'COMMIT' THEN COMMIT;
            ELSE
                SET @statement = step;
                PREPARE statement FROM @statement;
                EXECUTE statement;
                DEALLOCATE PREPARE statement;
            END CASE;
        END IF;
    END LOOP;
    CLOSE steps;
END
